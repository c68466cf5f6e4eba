"""One loop for every task and model: batches in, a trained model and its history out."""
