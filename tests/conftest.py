"""Two workers share two cores: one thread each, or they fight over them."""

import torch

torch.set_num_threads(1)
