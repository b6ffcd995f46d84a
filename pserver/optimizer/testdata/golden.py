"""Writes golden.json: what every optimizer makes of some parameters in 60 steps, in float64.

    python3 golden.py > golden.json

Written from the papers and PyTorch's documentation, with the state as recurrences and the corrections
of Adam's bias as they stand in the paper. Numbers of settings are what their text says, in float64.
"""
import json
import numpy as np

STEPS, SHAPES = 60, [(3, 4), (5,)]


def settings(text):
    words = text.split()
    return {name.lstrip("-"): value for name, value in zip(words[::2], words[1::2])}


def rate(s, step):
    """The learning rate of a step, from 1."""
    base, warm = float(s["learning-rate"]), int(s.get("warmup-steps", 0))
    epoch = step - 1  # as PyTorch counts
    if epoch < warm:
        return base * (epoch + 1) / warm
    epoch -= warm
    kind, end = s.get("schedule", "constant"), float(s.get("schedule-end", 0))
    if kind == "step":
        return base * float(s.get("schedule-factor", 0.1)) ** (epoch // int(s["schedule-every"]))
    if kind == "constant":
        return base
    total = int(s["schedule-steps"]) - warm
    epoch = min(epoch, total)
    if kind == "linear":
        return base + (base * end - base) * epoch / total
    eta_min = base * end
    return eta_min + 0.5 * (base - eta_min) * (1 + np.cos(np.pi * epoch / total))


class Optimizer:
    def __init__(self, s, w):
        self.s, self.t = s, 0
        self.a = np.zeros_like(w)
        self.b = np.zeros_like(w)
        if s["optimizer"] == "adagrad":
            self.a += float(s.get("initial-accumulator", 0))
        if s["optimizer"] == "ftrl":
            self.b += float(s.get("initial-accumulator", 0))
            self.a = -w * (float(s.get("ftrl-beta", 1)) + np.sqrt(self.b)) / float(s["learning-rate"])

    def step(self, w, g):
        s, kind = self.s, self.s["optimizer"]
        self.t += 1
        lr, mu = rate(s, self.t), float(s.get("momentum", 0))
        if "clip-value" in s:
            g = np.clip(g, -float(s["clip-value"]), float(s["clip-value"]))
        decay = float(s.get("weight-decay", 0))
        if kind == "adamw":
            w = w * (1 - lr * decay)
        else:
            g = g + decay * w
        if kind == "sgd":
            return w - lr * g
        if kind in ("momentum", "nesterov"):
            self.a = mu * self.a + g
            return w - lr * (g + mu * self.a if kind == "nesterov" else self.a)
        if kind == "adagrad":
            self.a = self.a + g**2
            return w - lr * g / (np.sqrt(self.a) + float(s.get("epsilon", 1e-10)))
        if kind in ("adam", "adamw"):
            b1, b2 = float(s.get("beta1", 0.9)), float(s.get("beta2", 0.999))
            self.a += (1 - b1) * (g - self.a)
            self.b += (1 - b2) * (g**2 - self.b)
            mean, square = self.a / (1 - b1**self.t), self.b / (1 - b2**self.t)
            return w - lr * mean / (np.sqrt(square) + float(s.get("epsilon", 1e-8)))
        if kind == "ftrl":
            alpha, beta = float(s["learning-rate"]), float(s.get("ftrl-beta", 1))
            l1, l2 = float(s.get("l1", 0)), float(s.get("l2", 0))
            sigma = (np.sqrt(self.b + g**2) - np.sqrt(self.b)) / alpha
            self.a = self.a + lr / alpha * g - sigma * w
            self.b = self.b + g**2
            w = (np.sign(self.a) * l1 - self.a) / ((beta + np.sqrt(self.b)) / alpha + l2)
            return np.where(np.abs(self.a) <= l1, 0.0, w)
        raise ValueError(kind)


def clip_norm(grads, limit):
    total = np.linalg.norm(np.concatenate([g.ravel() for g in grads]))
    return [g * min(1.0, limit / total) for g in grads]


def train(text, start, gradients):
    s = settings(text)
    params = [w.copy() for w in start]
    optimizers = [Optimizer(s, w) for w in params]
    kept = []
    for grads in gradients:
        if "clip-norm" in s:
            grads = clip_norm(grads, float(s["clip-norm"]))
        params = [o.step(w, g) for o, w, g in zip(optimizers, params, grads)]
        kept.append([w.ravel().tolist() for w in params])
    return {"settings": text, "params": kept[4::5]}


CASES = [
    "--optimizer sgd --learning-rate 0.1",
    "--optimizer sgd --learning-rate 0.1 --weight-decay 0.01 --clip-norm 1.5 --schedule step --schedule-every 20 --schedule-factor 0.5",
    "--optimizer momentum --learning-rate 0.02 --momentum 0.9",
    "--optimizer momentum --learning-rate 0.02 --momentum 0.9 --weight-decay 0.01 --clip-value 0.5 --schedule linear --warmup-steps 10 --schedule-steps 50 --schedule-end 0.1",
    "--optimizer nesterov --learning-rate 0.02 --momentum 0.9",
    "--optimizer nesterov --learning-rate 0.02 --momentum 0.8 --weight-decay 0.01 --clip-norm 1 --clip-value 0.4 --schedule cosine --warmup-steps 7 --schedule-steps 55",
    "--optimizer adagrad --learning-rate 0.05",
    "--optimizer adagrad --learning-rate 0.05 --initial-accumulator 0.1 --epsilon 0.001 --weight-decay 0.02 --clip-norm 2 --warmup-steps 15",
    "--optimizer adam --learning-rate 0.01",
    "--optimizer adam --learning-rate 0.01 --beta1 0.8 --beta2 0.99 --epsilon 0.0001 --weight-decay 0.05 --clip-norm 1 --schedule cosine --schedule-steps 60 --schedule-end 0.05",
    "--optimizer adamw --learning-rate 0.01 --weight-decay 0.1",
    "--optimizer adamw --learning-rate 0.01 --weight-decay 0.3 --clip-value 0.7 --schedule linear --warmup-steps 5 --schedule-steps 40",
    "--optimizer ftrl --learning-rate 0.1",
    "--optimizer ftrl --learning-rate 0.2 --ftrl-beta 0.5 --initial-accumulator 0.1 --l1 0.3 --l2 0.5 --clip-norm 1.5 --schedule step --warmup-steps 10 --schedule-every 15",
]


def main():
    random = np.random.default_rng(20)
    single = lambda *shape: random.standard_normal(shape).astype(np.float32).astype(np.float64)
    start = [single(*shape) for shape in SHAPES]
    gradients = [[single(*shape) for shape in SHAPES] for _ in range(STEPS)]
    flat = lambda tensors: [t.ravel().tolist() for t in tensors]
    print('{"start": %s,\n "gradients": [' % json.dumps(flat(start)))
    print(",\n".join(json.dumps(flat(g)) for g in gradients))
    print('],\n "cases": [')
    print(",\n".join(json.dumps(train(text, start, gradients)) for text in CASES))
    print("]}")


main()
