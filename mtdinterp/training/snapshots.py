"""At which steps a run keeps a snapshot of its weights."""


def spaced_steps(count: int, last: int) -> tuple[int, ...]:
    """Step 0 and different steps from 1 to the last one, equally spaced on a logarithmic scale.

    Early steps are whole numbers that lie closer together than the scale asks for: there, each step
    follows the one before, and the rest is spaced anew.

    Args:
        count: how many steps after step 0; if it is not below `last`, every step is included.
        last: the last step of the run.

    Returns:
        The steps in order; none if the count is 0.
    """
    if count == 0:
        return ()
    if count == 1:
        return (0, last)
    chosen = [0, 1]
    for remaining in range(min(count, last) - 1, 0, -1):
        step = chosen[-1]
        # The factor that reaches the last step after equal factors for all that remain.
        factor = (last / step) ** (1 / remaining)
        chosen.append(max(step + 1, round(step * factor)))
    return tuple(chosen)
