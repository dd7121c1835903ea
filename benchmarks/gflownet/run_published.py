"""Train DT-GFN by its authors' code (GFNOrg/dt-gfn) and score its trees; prints a line of JSON.

It runs in the environment of that code, and knows nothing of this package:

    python run_published.py FOLDER DATA [OVERRIDE ...]

FOLDER holds the code's main.py, DATA is a table in the code's format, and an override is one of
Hydra's, such as ``env.max_depth=5``. Nothing is changed but random numbers: no trees are drawn
to files, nothing is sent to a service of logs, the first of two tests is left out, and slow parts
of the code are replaced by quicker ones of the same outcome (`quicken`).
"""

import contextlib
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path


def configure(folder, data, logs, overrides):
    """Compose the configuration of the code's experiment ``tree_acc``."""
    from hydra import compose, initialize_config_dir

    places = [f"env.data_path={data}", f"user.logdir.root={logs}", f"logger.logdir.root={logs}"]
    quiet = ["logger.do.online=False", "logger.progress=False", "logger.test.first_it=False"]
    quiet += ["env.skip_mask_check=True"]
    with initialize_config_dir(str(Path(folder).resolve() / "config"), version_base="1.1"):
        return compose("main", ["+experiments=tree_acc", *places, *quiet, *overrides])


def make_agent(config):
    """Make the environment and the agent in the order of the code's ``main``."""
    from gflownet.utils.policy import parse_policy_config
    from hydra.utils import instantiate
    from main import set_seeds

    set_seeds(config.seed)
    logger = instantiate(config.logger, config, _recursive_=False)
    made = {"device": config.device, "float_precision": config.float_precision}
    env = instantiate(config.env, proxy=instantiate(config.proxy, **made), **made)
    policies, base = {}, {}
    for kind in ("forward", "backward"):
        parsed = parse_policy_config(config, kind=kind)
        policies[f"{kind}_policy"] = instantiate(parsed, env=env, **made, **base)
        base = {"base": policies["forward_policy"]}
    agent = instantiate(
        config.gflownet,
        **made,
        **policies,
        env=env,
        state_flow=None,
        buffer=config.env.buffer,
        logger=logger,
    )
    return env, agent


class Instead:
    """A module with some of its functions replaced."""

    def __init__(self, module, **replaced):
        self._module = module
        self.__dict__.update(replaced)

    def __getattr__(self, name):
        return getattr(self._module, name)


class Indexed(list):
    """A list of actions that finds one at once."""

    def __init__(self, actions):
        super().__init__(actions)
        self._places = {action: place for place, action in enumerate(actions)}

    def __contains__(self, action):
        return action in self._places

    def index(self, action):
        """Look the place of an action up."""
        return self._places[action]


def where(state, attribute):
    """Find the nodes that have an attribute, such as leaves."""
    return (state[:-1, attribute].numpy() == 1).nonzero()[0].tolist()


def undone(env, state, done):
    """List the actions that can have led to a state; those of the code's ``get_parents``."""
    if done:
        return [env.eos]
    nodes, stage = state.numpy(), int(state[-1, 0])
    if stage == 0:
        is_leaf = nodes[:-1, 0] == 1
        return [(6, k) for k in (is_leaf[1::2] & is_leaf[2::2]).nonzero()[0].tolist()]
    node = where(state, 4)[0]
    feature, threshold = nodes[node, 1:3].tolist()
    values = {1: node, 3: feature}
    if stage == 4:
        values[4] = env._get_thresh_idx(threshold)
    return [(stage - 1, values.get(stage, 0))]


def mask_backward(env, state=None, done=None, parents_a=None):
    """Mask the actions that cannot have led to a state, by default that of the environment."""
    state, done = env._get_state(state), env._get_done(done)
    mask = [True] * env.action_space_dim
    for action in undone(env, state, done) if parents_a is None else parents_a:
        mask[env.action_space.index(action)] = False
    return mask


def find_parents(batch):
    """Set every state's parent in a batch as the code does, in time linear in its size."""
    import torch

    parents, places = {}, {}
    for trajectory, states in batch.trajectories.items():
        parents[states[0]], places[states[0]] = batch.envs[trajectory].source, -1
        for before, after in itertools.pairwise(states):
            parents[after], places[after] = batch.states[before], before
    batch.parents = [parents[place] for place in range(len(batch))]
    batch.parents_indices = torch.tensor([places[place] for place in range(len(batch))])
    batch.parents_available = True


def quicken(env):
    """Draw no trees to files, and replace what takes most of the time.

    These are the distinct values of the training table, which the code sorts out anew for every
    action; leaves and the active node of a tree; the place of an action; backward actions and
    parents of states; lists of masks; and whether two trees of the replay are one, for their
    numbers are of a grid.
    """
    import numpy as np
    import torch
    from gflownet import gflownet_acc
    from gflownet.utils import batch, buffer

    module, found = sys.modules[type(env).__module__], set(env.X_train.ravel())
    module.np = Instead(module.np, unique=lambda table: found)  # asked for its length alone
    buffer.torch = Instead(
        torch,
        allclose=lambda one, other, equal_nan: one.numpy().tobytes() == other.numpy().tobytes(),
    )
    for user in (gflownet_acc, batch):
        user.tbool = lambda values, device: torch.tensor(np.asarray(values, bool), device=device)
    batch.Batch._compute_parents = find_parents
    env.action_space = Indexed(env.action_space)
    type(env).get_mask_invalid_actions_backward = mask_backward
    type(env)._find_leaves = staticmethod(lambda state: where(state, 0))
    type(env).find_active = staticmethod(lambda state: where(state, 4)[0])
    type(env)._plot_trees = staticmethod(
        lambda states, scores, iteration: setattr(env, "plotted", states[0])
    )


def watch(env, agent):
    """Keep what the code's last test has seen and found, and all losses."""
    seen, test, loss = {"losses": []}, env.test, agent.trajectorybalance_loss

    def tested(samples):
        seen["samples"], seen["result"] = list(samples), test(samples)
        return seen["result"]

    def lost(it, batch):
        found = loss(it, batch)
        seen["losses"].append(found[0].item())
        return found

    env.test, agent.trajectorybalance_loss = tested, lost
    return seen


def leaves_of(env, states, X):
    """Find the node [n, rows] that every tree sends every row to."""
    return type(env).predict(states, X, return_k=True, dirichlet=True)[1]


def accuracies(env, states, leaves_from):
    """Share of test rows that every tree gets right, by the majority of other rows in its leaves.

    A leaf without rows predicts the first class, as the mean of its Dirichlet has no preference.
    """
    import numpy as np

    X, y = (env.X_train, env.y_train) if leaves_from == "training" else (env.X_test, env.y_test)
    fitted, judged = leaves_of(env, states, X), leaves_of(env, states, env.X_test)
    counts = np.zeros((len(states), states.shape[1], env.n_classes))
    draws = np.arange(len(states))[:, None]
    np.add.at(counts, (draws, fitted, y[None]), 1)
    predicted = counts[draws, judged].argmax(axis=2)
    return (predicted == env.y_test).mean(axis=1)


def chosen(env, samples):
    """Repeat the choice of the code's test: what it plots is the tree that fits training best."""
    plotted = env.plotted
    return next(i for i, state in enumerate(samples) if same(state, plotted))


def same(state, other):
    """Tell whether two trees are one."""
    import torch

    return torch.equal(state.nan_to_num(-9), other.to(state.dtype).nan_to_num(-9))


def score(env, agent, seen):
    """Score the tree that the code chooses, and the most probable of the same draws."""
    import numpy as np
    import torch

    states, result = torch.stack(seen["samples"]), seen["result"]
    rewards = np.asarray(env.proxy(states).tolist())
    best, probable = chosen(env, seen["samples"]), int(rewards.argmax())
    by_training, by_test = accuracies(env, states, "training"), accuracies(env, states, "test")
    return {
        "as the code scores": float(result["test_top_1_mean_tree_acc"]),
        "its tree, training leaves": float(by_training[best]),
        "its tree, training rows": float(result["train_top_1_mean_tree_acc"]),
        "most probable, training leaves": float(by_training[probable]),
        "most probable, test leaves": float(by_test[probable]),
        "best on test rows, training leaves": float(by_training.max()),
        "best on test rows, test leaves": float(by_test.max()),
        "nodes": float(env.get_n_nodes(states[best])),
        "nodes of the most probable": float(env.get_n_nodes(states[probable])),
        "mean nodes": float(result["mean_n_nodes"]),
        "log Z": float(agent.logZ.detach().sum()),
        "log reward of the most probable": float(rewards[probable]),
        "mean log reward": float(rewards.mean()),
        "loss": float(np.mean(seen["losses"][-10:])),
        "distinct trees": float(len(np.unique(states.nan_to_num(-9).numpy(), axis=0))),
    }


def main(folder, data, *overrides):
    """Train and score; what the code prints goes to standard error."""
    data = str(Path(data).resolve())
    sys.path.insert(0, str(Path(folder).resolve()))
    import matplotlib

    matplotlib.use("Agg")
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as logs, contextlib.redirect_stdout(sys.stderr):
        config = configure(folder, data, logs, overrides)
        os.chdir(logs)
        env, agent = make_agent(config)
        quicken(env)
        seen = watch(env, agent)
        agent.train()
        found = score(env, agent, seen)
        os.chdir("/")
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
