import torch

# Tests run in one process a core: more threads in each only get in each other's way.
torch.set_num_threads(1)
