"""The same broadcast with torch.distributed's gloo: gloo.py BYTES RECEIVERS ROUNDS; prints the best round's seconds."""
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, world, size, rounds, where):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + where, rank=rank, world_size=world)
    data = torch.zeros(size, dtype=torch.uint8)
    best = float("inf")
    for turn in range(rounds + 1):
        if rank == 0:
            data.fill_(turn)
        dist.barrier()
        begin = time.perf_counter()
        dist.broadcast(data, 0)
        done = torch.zeros(1)
        dist.all_reduce(done)  # until every receiver has it
        if turn > 0:
            best = min(best, time.perf_counter() - begin)
        assert int(data[0]) == turn and int(data[-1]) == turn
    if rank == 0:
        print(best, flush=True)


if __name__ == "__main__":
    size, receivers, rounds = (int(a) for a in sys.argv[1:4])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(receivers + 1, size, rounds, folder + "/store"), nprocs=receivers + 1)
