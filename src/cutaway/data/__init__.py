"""Training data: pairs of texts from files of the usual formats and from the hub, streamed and cleaned by rules."""
