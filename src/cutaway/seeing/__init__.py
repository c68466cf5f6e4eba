"""Looking inside: traces, and the worked examples of the notes."""
