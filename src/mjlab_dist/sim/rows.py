"""Warp kernels of every physics step and reset: clear rows of some envs, choose keyframes, collect overflows."""

# Warp reads the annotations of kernels at run time, and its language is not Python's: no type checker understands it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
# pyright: reportIndexIssue=false, reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: ANN201, PLR0917

from collections.abc import Callable, Sequence

import torch
import warp as wp

wp.set_module_options({"enable_backward": False, "max_unroll": 4})


@wp.kernel
def clear_rows(
    mask: wp.array[wp.bool], addresses: wp.array[wp.uint64], strides: wp.array[wp.int64], sizes: wp.array[int]
):
    """Set the rows of some envs to 0 in several tensors; one thread per env and tensor.

    Args:
        mask: Envs to clear, (num_envs,).
    """
    env, i = wp.tid()
    if mask[env]:
        start = addresses[i] + wp.uint64(wp.int64(env) * strides[i])
        row = wp.array(ptr=start, shape=(sizes[i],), dtype=wp.uint8)
        for byte in range(sizes[i]):
            row[byte] = wp.uint8(0)


@wp.kernel
def choose_keys(mask: wp.array[wp.bool], key: int, keys: wp.array[int]):
    """Write the keyframe that each env is reset to, or -1 if it is not reset.

    Args:
        mask: Envs to reset, (num_envs,).
        keys: Output, (num_envs,).
    """
    env = wp.tid()
    keys[env] = wp.where(mask[env], key, -1)


@wp.kernel
def collect_overflow(
    newest: wp.array[int],
    bits: int,
    num_rows: wp.array[int],
    num_contacts: wp.array[int],
    num_pairs: wp.array[int],
    overflow: wp.array[int],
    demand: wp.array[int],
):
    """Accumulate the overflow bits of a step, and the maximum numbers of rows and contacts.

    Args:
        newest: Overflow bits of this step, (num_envs,).
        num_rows: Number of constraint rows, (num_envs,), including those that did not fit into the buffers.
        overflow: Accumulated bits, (num_envs,), updated in place.
        demand: Maxima over all steps, (num_envs + 1,), updated in place. The first num_envs values are numbers of
            constraint rows; the last value is the number of contacts or pairs in the whole batch.
    """
    env = wp.tid()
    overflow[env] = overflow[env] | (newest[env] & bits)
    demand[env] = wp.max(demand[env], num_rows[env])
    if env == 0:
        batch = demand.shape[0] - 1
        demand[batch] = wp.max(demand[batch], wp.max(num_contacts[0], num_pairs[0]))


def clearing(mask: wp.array, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Return a program, without arguments, that sets the rows of some envs to 0. One kernel clears all tensors.

    Args:
        mask: Envs to clear, (num_envs,) of bool, on Warp's current device.
        tensors: (num_envs, ...) each, of any type, with contiguous rows. The caller must keep them alive.
    """
    tensors = [tensor for tensor in tensors if tensor.numel()]
    if not tensors:
        return lambda: None
    assert all(len(tensor) == len(mask) and tensor[0].is_contiguous() for tensor in tensors)
    tables = [
        wp.array([tensor.data_ptr() for tensor in tensors], dtype=wp.uint64),
        wp.array([tensor.stride(0) * tensor.element_size() for tensor in tensors], dtype=wp.int64),
        wp.array([tensor[0].nbytes for tensor in tensors], dtype=int),
    ]
    size = (len(mask), len(tensors))

    def clear() -> None:
        wp.launch(clear_rows, size, [mask, *tables])

    return clear
