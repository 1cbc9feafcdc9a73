"""Warp kernels that belong to every step and reset of the physics: rows of some envs, and overflows."""

# Warp reads the annotations of kernels at run time, and its own language is not Python's: no checker of types follows it.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# pyright: reportInvalidTypeForm=false, reportOperatorIssue=false
# ruff: noqa: ANN201

import warp as wp

wp.set_module_options({"enable_backward": False, "max_unroll": 4})


@wp.kernel
def clear_rows(
    mask: wp.array[wp.bool], addresses: wp.array[wp.uint64], strides: wp.array[wp.int64], sizes: wp.array[int]
):
    """Set the rows of some envs to 0 in several tensors; one thread per env and tensor.

    Args:
        mask: Which envs.
        addresses: Where each tensor starts.
        strides: Bytes from one row of a tensor to the next.
        sizes: Bytes of a row.
    """
    env, i = wp.tid()
    if mask[env]:
        start = addresses[i] + wp.uint64(wp.int64(env) * strides[i])
        row = wp.array(ptr=start, shape=(sizes[i],), dtype=wp.uint8)
        for byte in range(sizes[i]):
            row[byte] = wp.uint8(0)


@wp.kernel
def choose_keys(mask: wp.array[wp.bool], key: int, keys: wp.array[int]):
    """Name the keyframe that each env is reset to, -1 for those that are not.

    Args:
        mask: Envs that are reset.
        key: Their keyframe.
        keys: The result.
    """
    env = wp.tid()
    keys[env] = wp.where(mask[env], key, -1)


@wp.kernel
def collect_overflow(newest: wp.array[int], bits: int, overflow: wp.array[int]):
    """Remember the overflows of a step.

    Args:
        newest: Bits of the step.
        bits: Those that are remembered.
        overflow: Bits of all steps.
    """
    env = wp.tid()
    overflow[env] = overflow[env] | (newest[env] & bits)
