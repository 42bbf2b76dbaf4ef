"""Processes of torch.distributed that adapt as one."""
