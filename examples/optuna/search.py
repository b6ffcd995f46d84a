#!/usr/bin/env python3
"""Searches hyper-parameters with Optuna: each trial is a job of its own.

    examples/optuna/search.py --trials 20 -- --passes 10

The arguments after -- are flags of `master run`. A trial that is worse than the median of the others is ended early.
"""

import argparse
import pathlib
import subprocess

import optuna


def objective(trial, args):
    """Runs a job, and returns its last accuracy on the held-out records."""
    directory = args.dir / f"trial-{trial.number}"
    flags = {
        "learning-rate": trial.suggest_float("learning-rate", 1e-3, 1, log=True),
        "optimizer": trial.suggest_categorical("optimizer", ["sgd", "adam"]),
        "model": trial.suggest_categorical("model", ["softmax", "mlp"]),
    }
    command = [args.master, "run", "--dir", directory, "--metrics-out", "-", *(f"--{flag}={value}" for flag, value in flags.items()), *args.flags]
    accuracy, step = None, 0
    with open(args.dir / f"trial-{trial.number}.log", "w") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as job:
        try:
            for line in job.stdout:  # the figures of each evaluation round, as name=value
                name, found, value = line.strip().partition("=")
                if not found or name != "accuracy":
                    continue
                accuracy, step = float(value), step + 1
                trial.report(accuracy, step)
                if trial.should_prune():
                    raise optuna.TrialPruned()
        except BaseException:  # also Ctrl-C
            job.terminate()  # ends all processes of the job
            raise
    if job.returncode != 0:
        raise RuntimeError(f"trial {trial.number}: exit code {job.returncode}: see {log.name}")
    return accuracy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--master", default="bin/master", help="the program")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("trainmaster-search"), help="directory of the jobs and the study")
    parser.add_argument("flags", nargs="*", help="flags of master run")
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    # The study is in a file: a search that was interrupted continues.
    study = optuna.create_study(study_name="search", storage=f"sqlite:///{args.dir}/study.db", load_if_exists=True, direction="maximize")
    study.optimize(lambda trial: objective(trial, args), n_trials=args.trials)
    print(f"best: accuracy {study.best_value:.4f} in trial {study.best_trial.number}: {study.best_params}")


if __name__ == "__main__":
    main()
