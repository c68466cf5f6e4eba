"""Attribution: what each layer predicts, where attention leads, which heads and which tokens matter."""
