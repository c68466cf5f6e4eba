"""Looking inside: traces, the sum behind any number, interventions, attribution, the notes' examples, pictures."""
