"""Sharded training by torch's FSDP2: each rank keeps one part in n of the weights, gradients and optimizer state.

    forward pass     a block's weights are gathered when it begins, and released when it ends
    backward pass    gathered again; the gradients are summed, and each rank keeps its part

The blocks of the Transformer stacks are units of their own; everything else (embeddings, tied ones in one unit, output
layer) is the root's, which is whole as long as the loss is computed. Only this file and distributed.py import
torch.distributed, and only with several ranks.

A sharded weight has the size of the whole one everywhere (DTensor), so names, shapes and the files of a checkpoint are
those of ordinary training. What needs whole weights (validation, a checkpoint) gathers them one tensor after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from dragoman.checkpoint import model_folder
from dragoman.checkpoint.streaming import LazyTensor
from dragoman.core.errors import UserError
from dragoman.core.types import Batch
from dragoman.inference.device import is_out_of_memory
from dragoman.nn.blocks import TransformerStack
from dragoman.nn.seq2seq import Seq2Seq
from dragoman.training.gradient import GradientResult, piece_seed


def shard_model(model: Seq2Seq, device: torch.device, world_size: int) -> None:
    """Leave each rank its part of every weight; from then on only `loss` computes, on all ranks at once."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

    scalars = [name for name, p in model.named_parameters() if p.dim() == 0]
    if scalars:
        raise UserError(f"{scalars[0]} is a single number, which runtime.sharding: full cannot split; set it to none")
    mesh = init_device_mesh(device.type, (world_size,))
    stacks = [module for module in model.modules() if isinstance(module, TransformerStack)]
    for block in dict.fromkeys(block for stack in stacks for block, _ in stack.layers()):  # shared ones once
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    # The root too: what is left gathered after a pass without gradient would be stale after the next step.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    register_fsdp_forward_method(model, "loss")
    for module in model.modules():
        if isinstance(module, FSDPModule):  # a sum of the gradients, not their mean, which gloo cannot do everywhere
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)


def compute_sharded_gradient(
    model: Seq2Seq,
    batches: Sequence[Batch],
    filler: Batch | None,
    loss_function: Callable[[Batch], Tensor],
    *,
    passes: int,
    total_weight: int,
    seed: int,
    step: int,
    device: torch.device,
    precision: str,
    rank: int,
    world_size: int,
) -> GradientResult:
    """Compute this rank's part of the gradient of the summed loss of all ranks / `total_weight` into `p.grad`.

    Every rank takes part in each pass. One that has fewer batches than passes computes `filler`, which counts nothing.
    """
    model.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for number in range(passes):
        is_own = number < len(batches)
        batch = batches[number] if is_own else filler
        assert batch is not None
        torch.manual_seed(piece_seed(seed, step, number * world_size + rank))
        try:
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
                loss = loss_function(batch.to(device))
            torch.autograd.backward(loss / total_weight if is_own else loss * 0.0)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(
                f"a batch of {batch.area:,} tokens does not fit into memory, and with runtime.sharding: full no rank "
                "can split its batch alone; lower training.batch_tokens, or set runtime.activation_checkpointing"
            ) from None
        if is_own:
            total += loss.detach().double()
    return GradientResult(total, sum(batch.tokens for batch in batches), None)


# -- whole tensors and their parts -------------------------------------------------------------------------------------


def is_sharded(x: Tensor) -> bool:
    """Whether a tensor is one of which each rank has a part."""
    return hasattr(x, "full_tensor")


def gather_tensor(x: Tensor) -> Tensor:
    """The whole of a sharded tensor, on every rank; all ranks call it in the same order. Others are returned as is."""
    whole: Tensor = x.full_tensor() if is_sharded(x) else x  # type: ignore[attr-defined]
    return whole


def local_part(x: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, in the same memory; others are returned as they are."""
    part: Tensor = x.to_local() if is_sharded(x) else x  # type: ignore[attr-defined]
    return part


def shard_like(whole: Tensor, like: Tensor) -> Tensor:
    """A whole tensor sharded as `like` is, without communication; as it is, if `like` is not sharded."""
    if not is_sharded(like) or is_sharded(whole) or whole.shape != like.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(whole.to(mesh.device_type), mesh, placements, src_data_rank=None)


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all numbers of this rank's parts are finite."""
    return all(bool(local_part(x).isfinite().all()) for x in tensors)


@torch.no_grad()
def copy_whole(weights: Mapping[str, Tensor], model: nn.Module) -> None:
    """Copy sharded weights into a whole model, one tensor after another; all ranks call it together."""
    for name, x in model_folder.unique_weights(model).items():
        x.copy_(gather_tensor(weights[name]))


def lazy_tensors(tensors: Mapping[str, Tensor]) -> dict[str, LazyTensor]:
    """Tensors that are gathered on the CPU when they are written; the other ranks gather them in the same order."""
    return {name: LazyTensor(tuple(x.shape), partial(_gather_on_cpu, x)) for name, x in tensors.items()}


def _gather_on_cpu(x: Tensor) -> Tensor:
    return gather_tensor(x).cpu()
