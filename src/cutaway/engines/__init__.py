"""What runs a model: PyTorch in a chosen precision, or CTranslate2. The tasks see one interface."""
