"""What commands print: tables, drawings, progress. A command imports its module when it runs."""
