"""Plants single bugs in a copy of the package: the named test must fail for each. `scripts/python.sh planted [WORD]` runs it.

docs/faults-python.md has the rows.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

SOURCE = pathlib.Path(__file__).parents[1] / "src" / "trainmaster"
LIMIT = 240.0  # seconds: a test that hangs has found the bug, if it needs less than half of it without the bug


class Bug(NamedTuple):
    """A bug: the row of the fault, what is wrong, the file, the text and its replacement, the test."""

    row: str
    name: str
    file: str
    text: str
    bad: str
    test: str


BUGS = [
    Bug(
        "F390", "sampler waits while a batch is in flight", "account.py", "Need(wait=not s.left,", "Need(wait=True,",
        "test_account.py::test_each_record_is_consumed_once",
    ),
    Bug(
        "F390", "no marker while a batch is in flight", "account.py", "if not is_closed and any(b.runs for b in s.flight):", "if False:",
        "test_account.py::test_each_record_is_consumed_once",
    ),
    Bug(
        "F391", "a task is finished when it is drawn", "account.py", "            if not left[task]:", "            if left[task] >= 0:",
        "test_account.py::test_each_record_is_consumed_once",
    ),
    Bug(
        "F391", "batches of two passes are mixed", "account.py", "if n and source.work.pass_ != pass_:", "if False:",
        "test_account.py::test_each_record_is_consumed_once",
    ),
    Bug(
        "F391", "finished tasks are reported with each request", "_sampler.py", "finished=list(finished))\n            self._note_reported(finished)", "finished=list(finished))",
        "test_loader.py::test_finishes_are_reported_once",
    ),
    Bug(
        "F392", "the state changes in two steps", "account.py", "        self._state = s._replace(flight=s.flight[1:], sent",
        "        self._state = s._replace(flight=s.flight[1:])\n        self._state = s._replace(flight=s.flight[1:], sent",
        "test_account.py::test_interrupt_at_any_instruction_loses_and_repeats_nothing",
    ),
    Bug(
        "F392", "a left loop does not get its batch again", "account.py", "self._state = self._state._replace(sent=after)", "pass",
        "test_loader.py::test_batch_in_hand_is_given_again_unless_it_is_done",
    ),
    Bug(
        "F393", "received bytes are noted after the call", "_link.py", "self._in.raw.extend(map(self.sock.recvmsg, (1 << 16,), (_ANCILLARY,)))",
        "got = self.sock.recvmsg(1 << 16, _ANCILLARY); self._in.raw.append(got)", "test_link.py::test_interrupt_at_any_instruction_mixes_up_no_reply",
    ),
    Bug(
        "F393", "tasks of a request that was given up are lost", "_link.py", 'tasks += reply.get("tasks") or ()',
        'tasks += (reply["id"] not in self._unwanted and reply.get("tasks")) or ()', "test_link.py::test_reply_of_another_request_is_not_taken",
    ),
    Bug(
        "F393", "memory of a request that was given up is lost", "_link.py", "            os.close(descriptor)\n            if \"key\" in reply:\n                self._freed",
        "            os.close(descriptor)\n            if \"key\" in reply:\n                collections.deque()", "test_link.py::test_memory_of_a_request_that_was_given_up_is_freed",
    ),
    Bug(
        "F394", "a worker that died does not interrupt the loop", "torch/_dataloader.py", "        if self.is_armed and not", "        if False and not",
        "test_torch.py::test_worker_that_is_killed_in_a_message_does_not_block_the_loop[fork]",
    ),
    Bug(
        "F394", "nothing watches the workers of a fork server", "torch/_dataloader.py", 'if self._method == "forkserver":', "if False:",
        "test_torch.py::test_worker_that_is_killed_in_a_message_does_not_block_the_loop[forkserver]",
    ),
    Bug(
        "F394", "the handler raises in the training step", "torch/_dataloader.py", "        finally:\n            _watch.is_armed = False\n",
        "        finally:\n            pass\n", "test_torch.py::test_killed_workers_are_replaced[fork]",
    ),
    Bug(
        "F394", "new workers do not read what was in flight", "torch/_dataloader.py", "                self.account.redraw(self._ahead)\n", "",
        "test_torch.py::test_killed_workers_are_replaced[fork]",
    ),
    Bug(
        "F394", "workers are replaced forever", "torch/_dataloader.py", "if failed > _RETRIES:", "if False:",
        "test_torch.py::test_worker_that_always_dies_ends_the_loop[dies_at_40]",
    ),
    Bug(
        "F554", "a worker collects the garbage of the script", "torch/_dataloader.py", "        gc.freeze()", "        pass",
        "test_torch.py::test_garbage_of_the_script_stays_in_its_workers[one loader]",
    ),
    Bug(
        "F554", "the workers of another loader have started", "torch/_dataloader.py", "self.starting -= 1", "self.starting = 0",
        "test_torch.py::test_garbage_of_the_script_stays_in_its_workers[two loaders]",
    ),
    Bug(
        "F399", "a local master leaves its directory", "local.py", '; rm -rf "$LOCAL_DIRECTORY"', "",
        "test_client.py::test_local_master_ends_with_its_process",
    ),
    Bug(
        "F394", "any worker that exits ends the loop", "torch/_dataloader.py", "if not has_answered and any(w.exitcode", "if any(w.exitcode",
        "test_torch.py::test_worker_that_always_dies_ends_the_loop[exits_at_40]",
    ),
    Bug(
        "F506", "a lack of a descriptor for the connection is an error of the system", "_agent.py", "            except OSError as e:\n                raise errors.ResourceError", "            except KeyError as e:\n                raise errors.ResourceError",
        "test_loader.py::test_lack_of_a_descriptor_for_the_connection_ends_the_loop",
    ),
    Bug(
        "F535", "a node that was away ends", "torch/elastic.py", "with contextlib.suppress(errors.OldGenerationError):", "with contextlib.suppress(KeyError):",
        "test_elastic.py::test_node_that_was_away_for_several_generations_takes_part_in_the_next",
    ),
    Bug(
        "F535", "a node joins again after its end", "torch/elastic.py", "                if self._is_shut_down:", "                if False:",
        "test_elastic.py::test_node_that_was_away_for_several_generations_takes_part_in_the_next",
    ),
    Bug(
        "F536", "an untrained model is committed", "torch/_checkpoints.py", '        self._require_restored("commit()")\n', "",
        "test_checkpoints.py::test_commit_before_restore_is_refused",
    ),
    Bug(
        "F537", "a task is not finished when its records are applied", "client.py", "        if task._left <= 0:\n", "        if False:\n",
        "test_docs.py::test_example_without_a_framework_continues_after_kills",
    ),
    Bug(
        "F484", "rows are written while the agent reads others", "ps.py", "        self._check_open(op)\n        self.settle()\n        dims", "        self._check_open(op)\n        dims",
        "test_ps.py::test_gradients_of_an_operation_in_progress_stay",
    ),
    Bug(
        "F538", "gradients elsewhere are not copied", "torch/_optimizer.py", "elif not _is_view(p.grad, gradient):", "elif False:",
        "test_optimizer.py::test_parameters_that_a_script_moves_are_trained",
    ),
    Bug(
        "F538", "parameters elsewhere are not copied", "torch/_optimizer.py", "            if not _is_view(p, place):\n                p.data.copy_(place)", "            if False:\n                p.data.copy_(place)",
        "test_optimizer.py::test_parameters_that_a_script_moves_are_trained",
    ),
    Bug(
        "F538", "the script has the tensors of the optimizer", "torch/_optimizer.py", "p.data = torch.from_numpy(self.ps.parameters[name])", "p.data = parameter",
        "test_optimizer.py::test_parameters_that_a_script_moves_are_trained",
    ),
    Bug(
        "F539", "a gradient is broadcast", "ps.py", "if array.shape != self.gradients[name].shape:", "if False:",
        "test_optimizer.py::test_bad_argument_of_an_exchange_is_named_and_ends_nothing",
    ),
    Bug(
        "F539", "a number of NumPy is sent as it is", "ps.py", '"scale": float(scale)}', '"scale": scale}',
        "test_optimizer.py::test_bad_argument_of_an_exchange_is_named_and_ends_nothing",
    ),
    Bug(
        "F539", "0 selects the default", "ps.py", " or (name in _ABOVE_ZERO and np.float32(value) == 0):", ":",
        "test_optimizer.py::test_bad_argument_of_an_exchange_is_named_and_ends_nothing",
    ),
    Bug(
        "F540", "a rollback at the start ends the script", "ps.py", "if not isinstance(e, self.lost):", "if True:",
        "test_optimizer.py::test_rollback_in_the_constructor_begins_another_session",
    ),
    Bug(
        "F540", "tasks of the former session are finished in the next one", "ps.py", "has_tasks = session._has_tasks()", "has_tasks = False",
        "test_steps.py::test_model_is_made_again_with_tasks_in_hand",
    ),
    Bug(
        "F509", "a stopped agent of a ring is waited for", "_link.py", "with contextlib.suppress(errors.InvalidError):  # a member", "with contextlib.suppress(errors.AgentTimeoutError):  # a member",
        "test_elastic.py::test_node_that_was_away_for_several_generations_takes_part_in_the_next",
    ),
    Bug(
        "F541", "the model has other parameters than the version", "torch/_optimizer.py", "            if self.ps.settle():\n                self._take()\n", "            self.ps.settle()\n",
        "test_optimizer.py::test_parameters_elsewhere_are_those_of_the_version_after_an_interrupt",
    ),
    Bug(
        "F541", "the initial parameters change with the model", "ps.py", "{name: a.copy() for name, a in arrays.items()}", "dict(arrays)",
        "test_optimizer.py::test_parameters_elsewhere_are_those_of_the_version_after_an_interrupt",
    ),
    Bug(
        "F541", "the end of the job replaces the parameters", "ps.py", "dict(self.parameters) if self.session.over else self._initial or", "self._initial or",
        "test_optimizer.py::test_parameters_elsewhere_are_those_of_the_version_after_an_interrupt",
    ),
    Bug(
        "F393", "an interrupt leaves the number of a closed descriptor", "_link.py",
        "            self._in = self._in._replace(replies=replies)  # before its descriptor is closed: no descriptor is closed twice\n            self._drop(*reply)\n",
        "            self._drop(*reply)\n            self._in = self._in._replace(replies=replies)\n",
        "test_link.py::test_interrupt_closes_no_descriptor_twice",
    ),
    Bug(
        "F397", "a chunk ahead keeps its descriptor", "_link.py", "for descriptor in (*self._in.descriptors, *(d for _, d in self._in.replies.values() if d is not None)):", "for descriptor in self._in.descriptors:",
        "test_link.py::test_link_that_ends_leaves_no_descriptor_of_a_chunk_ahead",
    ),
    Bug(
        "F542", "the loop of a late client asks for commands", "client.py", "        if self.over == LATE:\n            return False, []\n", "",
        "test_client.py::test_job_of_this_process_alone_that_has_ended",
    ),
    Bug(
        "F542", "the next client waits for the master of the ended job", "local.py", "if _own is None or _own.has_ended:", "if _own is None:",
        "test_client.py::test_job_of_this_process_alone_that_has_ended",
    ),
    Bug(
        "F542", "an address whose master has ended is tried", "client.py", "ended = has_ended(self._where)", "ended = False",
        "test_client.py::test_job_of_this_process_alone_that_has_ended",
    ),
    Bug(
        "F543", "the agent of a client that nothing uses runs on", "client.py", "            agent.release(self._unreported())\n", "",
        "test_client.py::test_client_that_is_not_closed_ends_its_session",
    ),
    Bug(
        "F544", "two threads are in a loop", "loader.py", 'self._threads.setdefault("in the loop", thread) != thread', "False",
        "test_loader.py::test_loop_of_another_thread_is_refused",
    ),
    Bug(
        "F510", "messages of any size", "torch/_dataloader.py", "0 < value.nbytes() <= self._room:", "0 < value.nbytes():",
        "test_torch.py::test_workers_end_with_a_script_that_is_killed",
    ),
    Bug(
        "F517", "a worker sends the length of a message alone", "torch/_dataloader.py", "if len(content) > _PIPE:", "if len(content) > 4:",
        "test_torch.py::test_worker_that_is_killed_at_a_write_blocks_no_thread",
    ),
    Bug(
        "F511", "a flush is pushed from the gradient in hand", "torch/_optimizer.py", "own = sent if self.push_every == 1 else np.zeros_like(sent)", "own = sent",
        "test_optimizer.py::test_push_of_waiting_batches_leaves_the_gradient_in_hand",
    ),
    Bug(
        "F512", "tasks finish before the step", "torch/_optimizer.py", 'self.is_async = self.ps.mode == "async"', "self.is_async = False",
        "test_optimizer.py::test_tasks_wait_for_the_step_of_accumulated_gradients",
    ),
    Bug(
        "F512", "a loop without steps waits", "client.py", "        if waits and works == []:", "        if False:",
        "test_optimizer.py::test_loop_without_steps_ends",
    ),
    Bug(
        "F512", "tasks finish whenever the loader waits", "client.py", "reported = finished(False)", "reported = finished(wait)",
        "test_steps.py::test_tasks_of_accumulated_gradients_return_with_a_killed_agent",
    ),
    Bug(
        "F512", "tasks of a step that is not pushed are finished", "client.py", "tuple(t for t in found if t not in self._steps.open and t not in self._steps.unpushed)", "found",
        "test_steps.py::test_tasks_of_a_step_that_cannot_be_pushed_at_the_end_return",
    ),
    Bug(
        "F512", "a loop over tasks finishes those of a closed loader", "client.py", "return self._held.finished if is_last else self._stepped(self._held.finished)", "return self._held.finished",
        "test_steps.py::test_tasks_of_a_step_that_waits_for_others_return_with_a_killed_agent",
    ),
    Bug(
        "F519", "a closed model leaves its tasks out", "ps.py", "            session._report_at_end(limit=_SETTLE)\n", "",
        "test_steps.py::test_loop_that_is_left_after_a_step_reports_its_tasks",
    ),
    Bug(
        "F519", "the tasks of a client that nothing uses are lost", "client.py", "agent.release(self._unreported())", "agent.release(())",
        "test_steps.py::test_loop_that_is_left_after_a_step_reports_its_tasks",
    ),
    Bug(
        "F523", "a loader drops the tasks of a new session", "client.py", "loader.account.has_begun", "bool(loader.account.open or loader.account.finished)",
        "test_steps.py::test_loader_has_no_numbers_of_the_session_of_a_closed_model",
    ),
    Bug(
        "F512", "a step between two passes has the next batch", "client.py", "if loader is not None and loader._is_ahead else ()", "if False else ()",
        "test_steps.py::test_step_between_two_passes_is_of_the_pass_before",
    ),
    Bug(
        "F518", "a stopped loop finishes all tasks", "_sampler.py", "        finished = self.finished()\n        if finished and not self.client.over:", "        finished = self.finished(is_last=True)\n        if finished and not self.client.over:",
        "test_steps.py::test_stopped_loop_finishes_only_tasks_of_a_step",
    ),
    Bug(
        "F518", "a step after a stopped loop finishes nothing", "client.py", "self._is_lost or self._has_ended or not", "self._is_lost or self.over or not",
        "test_steps.py::test_stopped_loop_finishes_only_tasks_of_a_step",
    ),
    Bug(
        "F528", "a refused step counts", "client.py", "_Steps(s.open if is_applied else s.open | s.unpushed)", "_Steps(s.open)",
        "test_steps.py::test_tasks_of_a_step_that_no_server_has_return",
    ),
    Bug(
        "F528", "a step without an answer does not count", "torch/_optimizer.py", "        else:\n            self._settle()", "",
        "test_steps.py::test_interrupted_step_counts_when_the_servers_have_it",
    ),
    Bug(
        "F529", "a drain is the end of the tasks", "client.py", 'elif reply.get("wait") == "drain":', "elif False:",
        "test_steps.py::test_drained_trainer_keeps_what_it_has_begun",
    ),
    Bug(
        "F550", "tasks of a full window finish", "client.py", 'if self._refusal.get("wait") == "window" and optimizer.has_gradients:', "if False:",
        "test_steps.py::test_full_window_is_not_the_end_of_the_tasks",
    ),
    Bug(
        "F551", "an optimizer does not know the batch in hand", "client.py", "open=before.union(tasks)", "open=before.union(tasks if self._optimizer else ())",
        "test_steps.py::test_optimizer_that_is_made_in_the_loop_has_the_batch_in_hand",
    ),
    Bug(
        "F552", "a master that is away has no task", "client.py", 'return bool(self._refusal.get("answered"))', "return True",
        "test_steps.py::test_master_that_is_away_has_not_said_that_there_is_no_task",
    ),
    Bug(
        "F552", "a group takes a master that is away for one without a task", "_sampler.py", "self.is_idle and self.client._has_no_task", "self.is_idle",
        "test_steps.py::test_group_waits_for_the_answer_of_a_master",
    ),
    Bug(
        "F553", "a group waits for a step", "_group.py", "sampler.is_idle = not agreed.samples", "sampler.is_idle = False",
        "test_steps.py::test_group_without_another_task_ends",
    ),
    Bug(
        "F519", "a step finishes tasks with the next batch only", "client.py", "self._steps = _Steps(frozenset(task for batch in ahead for task in batch.counts), s.unpushed | s.open)", "del s",
        "test_steps.py::test_loop_that_is_left_after_a_step_reports_its_tasks",
    ),
    Bug(
        "F519", "a client is closed without the tasks of its loader", "client.py", "return self._finished(False) if self._of_loader is None else self._of_loader()", "return self._finished(False)",
        "test_steps.py::test_loop_that_is_left_after_a_step_reports_its_tasks",
    ),
    Bug(
        "F522", "a closed loader takes its tasks with it", "loader.py", "            self._sampler.keep()\n            self.client._report", "            self.client._report",
        "test_steps.py::test_next_loader_makes_the_step_of_a_closed_one",
    ),
    Bug(
        "F523", "a closed model pushes at the end of a task", "ps.py", "session._optimizer, session._is_lost = None, True", "session._is_lost = True",
        "test_steps.py::test_loop_goes_on_without_its_closed_model",
    ),
    Bug(
        "F524", "a step that was not published is lost", "torch/_checkpoints.py", 'step = max([int(published.get("step", 0)), *(s for s, generation, _ in files if generation == last)])', 'step = int(published.get("step", 0))',
        "test_checkpoints.py::test_step_that_was_committed_and_not_published_is_loaded_after_the_end",
    ),
    Bug(
        "F524", "the file of a process without a session is loaded", "torch/_checkpoints.py", "for s, generation, _ in files if generation == last)", "for s, generation, _ in files)",
        "test_checkpoints.py::test_step_that_was_committed_and_not_published_is_loaded_after_the_end",
    ),
    Bug(
        "F525", "a step that cannot be loaded is committed", "torch/_checkpoints.py", "if refused:", "if False:",
        "test_checkpoints.py::test_step_that_no_start_could_load_is_not_committed",
    ),
    Bug(
        "F526", "a node that has not joined waits for the end of the ring", "torch/elastic.py", "        if not self._has_joined:\n            return\n", "",
        "test_elastic.py::test_node_without_a_master_ends_at_its_timeout",
    ),
    Bug(
        "F523", "an interrupted operation is sent in the session of another model", "ps.py", "self._is_closed, self._done = True, self.sequence", "self._is_closed = True",
        "test_steps.py::test_closed_model_pushes_nothing",
    ),
    Bug(
        "F526", "a question ends the agent of a ring", "_link.py", 'self._call("free", _PATIENCE, {})', 'self._call("free", _PATIENCE, {"key": 0})',
        "test_elastic.py::test_wait_for_a_ring_keeps_the_agent",
    ),
    Bug(
        "F513", "a server without parameters ends the script", "client.py", "return lost if self.explicit else (*lost, errors.RolledBackError)",
        "return (*lost, errors.RolledBackError) if self._cuts else lost", "test_optimizer.py::test_server_without_parameters_gets_those_of_the_trainer",
    ),
    Bug(
        "F514", "a gradient that is not finite waits", "torch/_optimizer.py", "        if self.push_every > 1:\n            self._require_finite()\n", "",
        "test_optimizer.py::test_gradient_that_is_not_finite_is_refused_in_its_own_step",
    ),
    Bug(
        "F515", "a refused optimizer keeps its session", "torch/_optimizer.py", "        except BaseException:\n            self.ps.close()\n", "        except BaseException:\n",
        "test_optimizer.py::test_optimizer_can_be_made_after_one_that_was_refused",
    ),
    Bug(
        "F516", "the end of a session counts as that of an agent", "client.py", "if self._agent.process.returncode:", "if True:",
        "test_client.py::test_sessions_that_end_are_not_ends_of_the_agent",
    ),
    Bug(
        "F545", "done() between two passes counts the next batch", "loader.py", "if self._is_ahead:", "if False:",
        "test_loader.py::test_batch_that_passes_has_read_ahead_is_not_trained[done]",
    ),
    Bug(
        "F545", "passes() gives a batch after stop()", "loader.py", "if self._is_stopped and self._group_loop is None:", "if False:",
        "test_loader.py::test_batch_that_passes_has_read_ahead_is_not_trained[stop]",
    ),
    Bug(
        "F546", "finish waits for the next request", "_sampler.py", "                self.report_applied()\n        self._trained", "                pass\n        self._trained",
        "test_loader.py::test_finish_does_not_wait_for_the_next_request",
    ),
    Bug(
        "F547", "tasks of a session that has ended", "client.py", "            self._is_lost = True  # the next task is of another session\n", "",
        "test_client.py::test_agent_that_is_killed_in_a_task_is_started_by_the_next_loop",
    ),
    Bug(
        "F555", "report_dataset needs a living agent", "client.py", "            except self._lost:\n                self._restart(stays_lost=has_tasks)\n", "            finally:\n                pass\n",
        "test_client.py::test_agent_that_is_killed_before_a_dataset_is_named_is_started",
    ),
    Bug(
        "F555", "fail needs a living agent", "client.py", "            except self._lost:\n                self._is_lost = True  # its tasks return to the queue\n", "            finally:\n                pass\n",
        "test_client.py::test_agent_that_is_killed_before_a_task_fails_is_started_by_the_next_loop",
    ),
    Bug(
        "F556", "is_last waits for a task", "loader.py", "self._sampler.is_looking = True", "pass",
        "test_steps.py::test_is_last_does_not_wait_after_done[0]",
    ),
    Bug(
        "F556", "is_last requires the step for which it is read", "_sampler.py", "if not (self.is_in_group or self.is_looking):", "if not self.is_in_group:",
        "test_checkpoints.py::test_is_last_after_done_is_true_before_the_step",
    ),
    Bug(
        "F560", "a step after done is not counted", "torch/_checkpoints.py", "        else:\n            self._apply()\n", "",
        "test_checkpoints.py::test_step_after_done_counts",
    ),
    Bug(
        "F560", "the loop goes on after an interrupted step", "torch/_checkpoints.py", "self._is_between = self._has_batches()", "self._is_between = self._in_hand is not None",
        "test_checkpoints.py::test_interrupted_step_after_done_is_not_continued",
    ),
    Bug(
        "F560", "a step between two passes is of the next batch", "torch/_checkpoints.py", "not self.loader._is_ahead and ", "",
        "test_checkpoints.py::test_step_between_passes_is_not_of_the_next_batch",
    ),
    Bug(
        "F561", "a batch without records counts in the mean", "torch/_optimizer.py", "self._added(1 if records is None else records)", "self._added(records or 1)",
        "test_optimizer.py::test_batch_without_records_is_not_in_the_mean_of_a_push",
    ),
    Bug(
        "F561", "a push without records divides by zero", "torch/_optimizer.py", "1 / max(1, held.records)", "1 / held.records",
        "test_optimizer.py::test_batch_without_records_is_not_in_the_mean_of_a_push",
    ),
    Bug(
        "F561", "a group in a synchronous job", "torch/_dataloader.py", "if self.client._cuts:", "if False:",
        "test_optimizer.py::test_group_in_a_synchronous_job_is_refused",
    ),
    Bug(
        "F563", "a worker of a killed script goes on", "torch/_dataloader.py", "    if parent and os.getppid() != parent:\n        os._exit(1)\n", "",
        "test_torch.py::test_worker_ends_although_its_script_was_killed_before_its_start",
    ),
    Bug(
        "F564", "a failing decode is a lost session", "_sampler.py", "if failures and self.client.explicit:", "if False:",
        "test_checkpoints.py::test_failing_decode_ends_the_loop_with_its_error",
    ),
    Bug(
        "F564", "the end of a loader hides the error of its loop", "loader.py", "raise errors.RolledBackError(MEMBER_LOST) from e\n        is_last", "raise\n        is_last",
        "test_checkpoints.py::test_agent_that_is_killed_ends_the_loop_with_the_documented_error",
    ),
    Bug(
        "F557", "a second session forgets that the loop has a task of the first", "client.py", "has or self._is_behind or ", "has or ",
        "test_steps.py::test_task_in_hand_is_in_no_step_after_two_sessions[optimizers]",
    ),
    Bug(
        "F557", "an interrupted session forgets that the loop has a task", "client.py", "        self._is_behind = stays_lost  # also after an exception in what follows\n", "",
        "test_steps.py::test_task_in_hand_is_in_no_step_after_two_sessions[interrupt]",
    ),
    Bug(
        "F558", "the sum of gradients overflows", "torch/_optimizer.py", "self._gradients.double() * records if", "self._gradients * records if",
        "test_optimizer.py::test_sum_of_large_gradients_is_pushed",
    ),
    Bug(
        "F558", "the sum of gradients of rows overflows", "torch/_embedding.py", "np.multiply(gradients, factor, dtype=np.float64)", "np.multiply(gradients, np.float32(factor))",
        "test_optimizer.py::test_sum_of_large_gradients_is_pushed",
    ),
    Bug(
        "F559", "gradients of the last step are for another one", "torch/_optimizer.py", "(gradient is not last or gradient._version != version) and ", "",
        "test_steps.py::test_gradients_of_the_last_step_do_not_fill_the_window",
    ),
    Bug(
        "F548", "agents are started without end", "client.py", "if self._restarts >= _RESTARTS:", "if False:",
        "test_client.py::test_loader_whose_agent_always_ends_raises",
    ),
    Bug(
        "F548", "an answer without a task counts as a task", "client.py", "        if works:\n            self._restarts = 0\n", "        self._restarts = 0\n",
        "test_client.py::test_answer_without_a_task_is_no_progress",
    ),
    Bug(
        "F509", "a stopped agent that owes a chunk is waited for", "_link.py", "            reply, descriptor = self._await(number)\n", "            reply, descriptor = self._wait(number, 1e6)\n",
        "test_client.py::test_stopped_agent_that_owes_a_chunk_counts_as_lost",
    ),
    Bug(
        "F509", "a slow chunk is a lost agent", "_link.py", '                self._call("free", _PATIENCE, {})', "                raise errors.AgentTimeoutError",
        "test_client.py::test_stopped_agent_that_owes_a_chunk_counts_as_lost",
    ),
    Bug(
        "F534", "Ctrl-C ends a worker that starts", "torch/_dataloader.py", "            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))\n", "",
        "test_torch.py::test_worker_that_is_interrupted_at_its_start_goes_on",
    ),
    Bug(
        "F534", "Ctrl-C has no effect after workers could not start", "torch/_dataloader.py",
        "        finally:\n            signal.pthread_sigmask(signal.SIG_SETMASK, mask)\n", "        finally:\n            pass\n",
        "test_torch.py::test_lack_of_processes_leaves_a_loop_that_ctrl_c_ends",
    ),
    Bug(
        "F534", "Ctrl-C has no effect while the first draw waits", "torch/_dataloader.py", "signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # the workers", "pass  #",
        "test_torch.py::test_worker_that_is_interrupted_at_its_start_goes_on",
    ),
    Bug(
        "F534", "torch's handler raises for workers that start", "torch/_dataloader.py", "if callable(before) and not self.starting:", "if callable(before):",
        "test_torch.py::test_worker_that_dies_while_others_start_is_replaced",
    ),
    Bug(
        "F395", "a failure is not reported",
        "_sampler.py",
        "self.client._fail_work(f.task, f.text)",
        "pass",
        "test_loader.py::test_decode_error_fails_its_task",
    ),
    Bug(
        "F395", "records of a failed task stay in the batch that is begun", "account.py", "partial=s.partial.without(task), flight", "partial=s.partial, flight",
        "test_account.py::test_failed_task_leaves_the_batch_that_is_begun",
    ),
    Bug(
        "F395", "a failed task is dropped before it is reported", "_sampler.py", "                self.client._fail_work(f.task, f.text)",
        "                self.account.fail(f.task)\n                self.client._fail_work(f.task, f.text)",
        "test_loader.py::test_exception_before_a_failure_is_reported_keeps_its_task",
    ),
    Bug(
        "F395", "records of a failed task stay in its batch", "_reader.py", "in made if task not in bad for item", "in made for item",
        "test_loader.py::test_decode_error_fails_its_task",
    ),
    Bug(
        "F395", "a batch without records is yielded", "_reader.py", "return tuple(failures), len(items), self.collate(items) if items else None",
        "return tuple(failures), 1, self.collate(items)", "test_loader.py::test_skipped_record_is_consumed",
    ),
    Bug(
        "F396", "batches of a lost session go on", "_sampler.py", "        self.account.reset()\n", "", "test_loader.py::test_agent_that_is_killed_costs_no_count",
    ),
    Bug(
        "F444", "a progress report to a dead agent ends the loop", "client.py", "suppress(errors.AgentLostError):  # the next request finds it\n            self._link", "suppress():\n            self._link",
        "test_loader.py::test_batch_of_a_lost_session_comes_again",
    ),
    Bug(
        "F480", "progress finds the end of the agent", "client.py", "suppress(errors.AgentLostError):  # the next request finds it\n            self._link", "suppress():\n            self._link",
        "test_loader.py::test_agent_that_is_killed_in_a_step_does_not_end_the_loop",
    ),
    Bug(
        "F480", "a session that has not begun counts as begun", "client.py", "        self._agent = self._start()\n        try:", "        self._agent = self._start()\n        self._is_lost = False\n        try:",
        "test_loader.py::test_exception_in_a_restart_loses_no_record",
    ),
    Bug(
        "F480", "tasks that came late hide the finished ones", "client.py", "if (self._given_back or self._link.tasks) and finished:", "if False:",
        "test_client.py::test_finishes_are_reported_after_an_interrupt",
    ),
    Bug(
        "F480", "a request to a closed agent is an error of the system", "_link.py", "        self._in = self._in._replace(is_ended=True)\n", "",
        "test_loader.py::test_exception_in_a_restart_loses_no_record[master]",
    ),
    Bug(
        "F481", "a loss that is not finite is sent", "client.py", "if math.isfinite(value) else {}", "if loss is not None else {}",
        "test_loader.py::test_loss_that_is_not_finite_costs_no_record",
    ),
    Bug(
        "F482", "each chunk of the window stays mapped", "loader.py", "return min(32 * window, max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4 // readers))",
        "return 32 * window", "test_loader.py::test_mapped_chunks_stay_below_the_limit_of_open_files",
    ),
    Bug(
        "F482", "each worker keeps as many chunks as the loader may", "loader.py", " // 4 // readers))", " // 4))",
        "test_torch.py::test_mapped_chunks_of_all_workers_stay_below_the_limit_of_the_agent",
    ),
    Bug(
        "F484", "gradients are written while they are read", "ps.py", "        self.settle()\n        if grads.keys()", "        if grads.keys()",
        "test_ps.py::test_gradients_of_an_operation_in_progress_stay",
    ),
    Bug(
        "F485", "a node waits in a generation of the past", "torch/elastic.py", 'if now["generation"] > self._generation or now["ended"]', "if False",
        "test_elastic.py::test_generation_is_replaced_while_a_node_stops_its_program",
    ),
    Bug(
        "F487", "programs do not have the address", "torch/elastic.py", "        if not named:  # torchrun", "        if False:  # torchrun",
        "test_elastic.py::test_programs_have_the_address_of_the_master",
    ),
    Bug(
        "F487", "programs do not have the name of the job", "torch/elastic.py", '            os.environ.setdefault("TRAINMASTER_JOB"', '            dict().setdefault("TRAINMASTER_JOB"',
        "test_elastic.py::test_programs_have_the_address_of_the_master",
    ),
    Bug(
        "F488", "the last barrier is an error", "torch/elastic.py", "            if not any(_EXIT in key", "            if True or not any(_EXIT in key",
        "test_ddp.py::test_example_survives_a_killed_rank",
    ),
    Bug(
        "F489", "each rank renames the directory of a step", "torch/_checkpoints.py",
        "        if self._writes():\n            if not temporary.exists():", "        if True:\n            if not temporary.exists():",
        "test_fsdp.py::test_sharded_model_has_each_record_once_per_pass",
    ),
    Bug(
        "F397", "memory is freed while records are in use", "_link.py", "weakref.finalize(memory, self._free, reply[\"key\"], os.getpid()).atexit = False",
        'self._free(reply["key"], os.getpid())', "test_link.py::test_freed_chunk_is_reported_with_the_next_request",
    ),
    Bug(
        "F400", "a step does not report what it applied", "torch/_checkpoints.py", "        self._report(self._open, self.step)\n", "",
        "test_checkpoints.py::test_accumulated_batches_and_several_steps_for_a_batch",
    ),
    Bug(
        "F400", "the same step is saved again", "torch/_checkpoints.py", "                self.step += 1\n            self._begin_save()", "                pass\n            self._begin_save()",
        "test_checkpoints.py::test_pass_that_ends_with_skipped_records_is_committed",
    ),
    Bug(
        "F401", "a batch without a step is accepted", "_sampler.py", "        if self._unapplied():\n            raise", "        if False:\n            raise",
        "test_checkpoints.py::test_bad_input_is_explained",
    ),
    Bug(
        "F450", "weights are those of equal ranks", "_group.py", "loader.weight = group.size * now.samples / agreed.samples", "loader.weight = float(now.samples > 0)",
        "test_group.py::test_gradient_is_that_of_the_mean_over_all_records",
    ),
    Bug(
        "F451", "a group ends with the agent of a rank", "loader.py", "                self._sampler.restart()\n                self._results, self._ahead", "                raise\n                self._results, self._ahead",
        "test_group.py::test_gradient_is_that_of_the_mean_over_all_records[agent killed]",
    ),
    Bug(
        "F459", "the end of a job is an error", "torch/_checkpoints.py", "            except errors.OverError:\n                client._end",
        "            except ZeroDivisionError:\n                client._end",
        "test_checkpoints.py::test_script_that_starts_after_the_end_loads_the_last_step",
    ),
    Bug(
        "F459", "a file of the program is compared with no job", "torch/_checkpoints.py", "self._restoring = step, job", "self._restoring = step, self.loader.client.job_id",
        "test_checkpoints.py::test_script_that_starts_after_the_end_loads_the_last_step[of the program]",
    ),
    Bug(
        "F490", "a step without a file is committed", "torch/_checkpoints.py", "        return s.is_complete", "        return True",
        "test_checkpoints.py::test_step_without_a_file_is_not_committed[save]",
    ),
    Bug(
        "F491", "two processes write one file", "torch/_checkpoints.py", 'f"step-{step:012d}-{self._generation}.pt"', 'f"step-{step:012d}-1.pt"',
        "test_checkpoints.py::test_process_without_a_session_replaces_no_file",
    ),
    Bug(
        "F491", "a former process publishes its step", "torch/_checkpoints.py", 'if published.get("job") == job and', "if False and",
        "test_checkpoints.py::test_process_without_a_session_replaces_no_file",
    ),
    Bug(
        "F491", "files of former processes stay", "torch/_checkpoints.py", "if generation < self._generation and", "if False and",
        "test_checkpoints.py::test_process_without_a_session_replaces_no_file",
    ),
    Bug(
        "F492", "another order is continued", "torch/_checkpoints.py", 'if step and is_own and published.get("seed") !=', "if False and None !=",
        "test_checkpoints.py::test_another_order_is_refused[8]",
    ),
    Bug(
        "F492", "ranks have several orders", "torch/_checkpoints.py", "if group.any(group.number(mine) != mine):", "if group.number(mine) < 0:",
        "test_checkpoints.py::test_another_order_is_refused[8]",
    ),
    Bug(
        "F493", "a rank that fails waits for the others", "torch/_checkpoints.py", 'is not None and hasattr(sys, "last_value"):', "is not None and False:",
        "test_checkpoints.py::test_rank_that_ends_with_an_exception_does_not_wait_for_the_others",
    ),
    Bug(
        "F494", "files are synced while ranks write", "torch/_checkpoints.py", "        self._barrier()  # no rank writes any more\n", "",
        "test_checkpoints.py::test_files_are_synced_when_no_rank_writes",
    ),
    Bug(
        "F501", "the error of the agent ends the loop", "torch/_checkpoints.py",
        'task=task, step=step, n=n)\n        except self.loader.client._lost:', 'task=task, step=step, n=n)\n        except ZeroDivisionError:',
        "test_checkpoints.py::test_agent_that_is_killed_ends_the_loop_with_the_documented_error",
    ),
    Bug(
        "F502", "a request is awaited that was given up", "torch/_checkpoints.py", "            s.request = None\n        before", "        before",
        "test_checkpoints.py::test_interrupted_commit_is_repeated",
    ),
    Bug(
        "F503", "a copy has no versions of modules", "torch/_checkpoints.py", "if isinstance(state, collections.OrderedDict):", "if False:",
        "test_checkpoints.py::test_copied_state_has_the_versions_of_its_modules",
    ),
    Bug(
        "F452", "the batch in hand is read again", "torch/_dataloader.py", "self.account.redraw(self._ahead)", "self.account.redraw()",
        "test_torch.py::test_worker_that_is_killed_while_the_loop_looks_ahead",
    ),
    Bug(
        "F454", "an applied batch is given again", "loader.py", "if self.checkpoints._last_used == self.account.consumed and", "if False and",
        "test_checkpoints.py::test_loop_that_was_left_does_not_repeat_an_applied_batch",
    ),
    Bug(
        "F454", "an interrupted step is continued", "torch/_checkpoints.py", "self._is_between = self._has_batches()", "pass",
        "test_checkpoints.py::test_interrupted_step_is_not_continued",
    ),
    Bug(
        "F455", "a directory of another job is used", "torch/_checkpoints.py", 'if step == 0 and not is_own and', "if False and",
        "test_checkpoints.py::test_files_of_another_job_are_kept_and_refused",
    ),
    Bug(
        "F456", "tasks with accumulated batches are finished", "_sampler.py", "for t in (*client._held.finished, *self.account.finished) if t not in unapplied]",
        "for t in (*client._held.finished, *self.account.finished)]", "test_checkpoints.py::test_accumulated_batches_and_several_steps_for_a_batch",
    ),
    Bug(
        "F457", "a process does not wait for its step", "torch/_checkpoints.py", "        checkpoints.finish(_EXIT)", "        pass",
        "test_checkpoints.py::test_process_waits_for_its_file_at_the_end",
    ),
    Bug(
        "F457", "the file is written in the foreground", "torch/_checkpoints.py", "        self.thread.start()", "        self.thread.start(); self.thread.join(120)",
        "test_checkpoints.py::test_file_is_written_while_training_continues",
    ),
    Bug(
        "F458", "the state of another step is loaded", "torch/_checkpoints.py", 'and state.get("step") == step:', "and True:",
        "test_checkpoints.py::test_state_of_the_loader_is_in_files_of_the_program",
    ),
    Bug(
        "F386", "directories of killed trainers stay", "_agent.py", "                    _remove(path)\n", "                    pass\n",
        "test_client.py::test_directory_of_killed_processes_is_removed",
    ),
    Bug(
        "F386", "the directory of a running trainer is removed", "_agent.py", "fcntl.flock(self._lock, fcntl.LOCK_EX)", "pass",
        "test_client.py::test_directory_of_killed_processes_is_removed",
    ),
    Bug(
        "F398", "a program of another version is accepted", "_agent.py", "if MASTER and found != MASTER:", "if False:",
        "test_client.py::test_another_version_is_refused",
    ),
    Bug(
        "F398", "each replica trains alone", "local.py", 'if os.environ.get("KUBERNETES_SERVICE_HOST")', "if False", "test_client.py::test_local_master",
    ),
    Bug(
        "F434", "a lost node is not noticed", "torch/elastic.py", 'state["generation"] > self._generation or bool(state["ended"])', "False",
        "test_elastic.py::test_nodes_come_and_go_and_the_master_is_killed",
    ),
    Bug(
        "F435", "a failure is not reported", "torch/elastic.py", 'if 0 < self._generation == state["generation"] and', "if False and",
        "test_elastic.py::test_failed_program_starts_again_on_all_nodes",
    ),
    Bug(
        "F415", "the parameters of the model are not in the arena", "torch/_optimizer.py", "p.data = torch.from_numpy(self.ps.parameters[name])", "p.copy_(parameter)",
        "test_ps.py::test_killed_trainer[asynchronous]",
    ),
    Bug(
        "F470", "a fork keeps a local master running", "local.py", '            self._guard.stdin.write(b"\\n")', "            pass",
        "test_client.py::test_local_master_ends_although_a_fork_has_its_pipe",
    ),
    Bug(
        "F441", "a loader holds two tasks", "client.py", '"--window", str(window)', '"--window", "2"',
        "test_torch.py::test_small_tasks_fill_batches[0]",
    ),
    Bug(
        "F442", "a task is finished before its gradients are pushed", "client.py", "            optimizer.flush()\n        return ()", "            self._note_pushed()\n        return ()",
        "test_ps.py::test_rest_is_pushed_before_a_task_is_finished",
    ),
    Bug(
        "F443", "a position leaves the batch in hand out", "account.py", "self._sources[task].records - left[task] + n for", "self._sources[task].records - left[task] for",
        "test_account.py::test_each_record_is_consumed_once",
    ),
    Bug(
        "F445", "a step waits without its reason", "client.py", "_EXPECTED.get(op, f", "_EXPECTED.get(None, f",
        "test_ps.py::test_step_says_that_it_waits_for_other_trainers",
    ),
    Bug(
        "F399", "a local master outlives its process", "local.py", "read -r _ <&3; kill $!; wait", "read -r _ <&3; exit",
        "test_client.py::test_local_master_ends_with_its_process",
    ),
    Bug(
        "F460", "SIGTERM ends the process", "_commands.py", "if threading.current_thread() is threading.main_thread() and", "if False and",
        "test_commands.py::test_trainer_that_is_stopped_finishes_its_batch_and_leaves[SIGTERM-Loader]",
    ),
    Bug(
        "F460", "SIGTERM after a drain ends the process", "_commands.py", "if not r.is_terminated]", "if not r.stopped]",
        "test_commands.py::test_trainer_that_is_stopped_finishes_its_batch_and_leaves[drain-Loader]",
    ),
    Bug(
        "F460", "the loop goes on after the batch in hand", "loader.py", "while not self._commands.follow():", "while not (self._commands.follow() and self._has_left):",
        "test_commands.py::test_trainer_that_is_stopped_finishes_its_batch_and_leaves[SIGTERM-Loader]",
    ),
    Bug(
        "F460", "the functions of on_stop are not called for a drain", "loader.py", " or self.client.over == DRAINED", " and self._commands.stopped != DRAINED",
        "test_commands.py::test_trainer_that_is_stopped_finishes_its_batch_and_leaves[drain-Loader]",
    ),
    Bug(
        "F461", "an evaluation that fails ends the training", "_commands.py", 'return {"error": shortened(f"{type(e).__name__}: {e}")}', "raise",
        "test_commands.py::test_model_is_evaluated_on_command[fails]",
    ),
    Bug(
        "F461", "a figure that is not finite is reported", "_commands.py", "if not math.isfinite(value):", "if False:",
        "test_commands.py::test_model_is_evaluated_on_command[not finite]",
    ),
    Bug(
        "F461", "a trainer that waits is not evaluated", "client.py", "(self._while_waiting is not None and self._while_waiting())", "False",
        "test_commands.py::test_model_is_evaluated_on_command[while it waits]",
    ),
    Bug(
        "F462", "batches are skipped after a resume", "hf.py", "settings.ignore_data_skip = True", "pass",
        "test_frameworks.py::test_trainer_of_transformers_trains_each_record_once",
    ),
    Bug(
        "F462", "the last batch does not count", "hf.py", "self.loader.done()", "pass",
        "test_frameworks.py::test_trainer_of_transformers_trains_each_record_once",
    ),
    Bug(
        "F474", "a second look-up replaces the first", "torch/_embedding.py", "self._new.setdefault(name, []).append((keys, gradients", "self._new[name] = [(keys, gradients",
        "test_embedding.py::test_rows_of_any_id",
    ),
    Bug(
        "F474", "gradients of a dropped batch are applied", "torch/_optimizer.py", "        self._gradients.zero_()\n        self._lookups.clear()", "        self._gradients.zero_()",
        "test_embedding.py::test_bad_input_is_explained",
    ),
    Bug(
        "F474", "rows are not pushed with a step of all trainers", "torch/_optimizer.py", "is_included = self.ps.stage(records=records, rows=rows)",
        "is_included = self.ps.stage(records=records)", "test_embedding.py::test_rows_equal_those_of_pytorch[sgd-sync]",
    ),
    Bug(
        "F474", "gradients of rows are not those of the mean", "torch/_optimizer.py", "rows_of(held.rows, mean)", "rows_of(held.rows)",
        "test_embedding.py::test_rows_of_several_batches_are_pushed_together",
    ),
    Bug(
        "F474", "rows never expire", "ps.py", '"expiry": 0 if self.expire_after is None else', '"expiry": 0 if self.expire_after is None else 1 << 20 or', "test_embedding.py::test_rows_expire",
    ),
    Bug(
        "F474", "the first update creates a row", "ps.py", '"admission": 0 if self.admit_after is None else', '"admission": 0 and', "test_embedding.py::test_rows_of_any_id",
    ),
    Bug(
        "F474", "a scaler of gradients is not noticed", "torch/_optimizer.py", 'if getattr(self, "found_inf", None) is not None:', "if False:",
        "test_embedding.py::test_bad_input_is_explained",
    ),
    Bug(
        "F474", "ids are shortened", "ps.py", '.view(np.int64)[:] = ids', ".view(np.int64)[:] = ids.astype(np.int32)", "test_embedding.py::test_rows_of_any_id",
    ),
    Bug(
        "F475", "a cut lacks the records that its rows have", "client.py", "        if self._cuts and not self._is_lost:\n            try:\n                self._link.post", "        if False:\n            try:\n                self._link.post",
        "test_embedding.py::test_killed_server_and_trainer_lose_and_repeat_no_update",
    ),
    Bug(
        "F476", "rows of a lost session are written into the new one", "ps.py", "        self._done = self.sequence\n        self._region = np.zeros(0, np.uint8)\n", "        self._done = self.sequence\n",
        "test_embedding.py::test_agent_that_is_killed_before_a_lookup_does_not_end_the_loop",
    ),
    Bug(
        "F476", "a look-up ends the loop", "torch/_embedding.py", "if not (is_trained and torch.is_grad_enabled()):", "if True:",
        "test_embedding.py::test_agent_that_is_killed_before_a_lookup_does_not_end_the_loop",
    ),
    Bug(
        "F476", "an evaluation has zeros", "torch/_embedding.py", "if not (is_trained and torch.is_grad_enabled()):", "if False:",
        "test_embedding.py::test_agent_that_is_killed_before_a_lookup_does_not_end_the_loop",
    ),
    Bug(
        "F476", "batches of a lost session are pushed in the next one", "torch/_optimizer.py", "        self._held = _Held()\n        self._lookups.clear()\n", '        self._held = getattr(self, "_held", _Held())\n',
        "test_embedding.py::test_agent_that_is_killed_with_batches_that_wait_does_not_repeat_their_rows",
    ),
    Bug(
        "F477", "batches are forgotten before the request", "torch/_optimizer.py", "        before = self.ps.sequence\n", "        before = -1\n",
        "test_embedding.py::test_interrupted_step_loses_and_repeats_no_gradient[3]",
    ),
    Bug(
        "F477", "batches are not forgotten after an interrupted request", "torch/_optimizer.py", "        finally:\n            if self.ps.sequence", "        else:\n            if self.ps.sequence",
        "test_embedding.py::test_interrupted_step_loses_and_repeats_no_gradient[3]",
    ),
    Bug(
        "F477", "a batch waits before its step is complete", "torch/_optimizer.py", "                self._push(held)\n            is_done", "                self._held = held\n                self._push(held)\n            is_done",
        "test_embedding.py::test_interrupted_step_loses_and_repeats_no_gradient[1]",
    ),
    Bug(
        "F478", "look-ups of threads share their memory", "torch/_embedding.py", "            with self._lock:\n", "            if True:\n",
        "test_embedding.py::test_lookups_of_threads_do_not_mix",
    ),
    Bug(
        "F463", "batches that are not trained count", "hf.py", "if settings.gradient_accumulation_steps != 1:", "if False:",
        "test_frameworks.py::test_bad_settings_of_transformers_are_explained",
    ),
    Bug(
        "F495", "skipped records have a weight", "loader.py", "self._at = samples, self", "self._at = sum(counts.values()), self",
        "test_loader.py::test_skipped_records_have_no_weight",
    ),
    Bug(
        "F496", "the agent ends a loop that was stopped", "loader.py", "        except self.client._lost as e:\n            if self.client.explicit:", "        except ZeroDivisionError as e:\n            if self.client.explicit:",
        "test_commands.py::test_stop_and_the_end_of_the_agent_in_one_batch",
    ),
    Bug(
        "F497", "a stop of one rank stops all ranks in order", "loader.py", "            if self.client.over:\n                return\n            raise errors.RankStoppedError(", "            return\n            raise errors.RankStoppedError(",
        "test_group.py::test_ranks_end_with_an_error_if_another_rank_is_stopped[stop]",
    ),
    Bug(
        "F497", "the other ranks do not commit the step", "loader.py", "        self._store()\n        if not self._is_stopped:", "        if self._is_stopped:\n            self._store()\n        if not self._is_stopped:",
        "test_group.py::test_ranks_end_with_an_error_if_another_rank_is_stopped[stop]",
    ),
    Bug(
        "F497", "a drained rank takes part without records", "_group.py", "stopped=int(loader._is_stopped),", "stopped=int(bool(loader._commands.stopped)),",
        "test_group.py::test_ranks_end_with_an_error_if_another_rank_is_stopped[drain]",
    ),
    Bug(
        "F498", "the Trainer of transformers takes a group", "hf.py", "if loader.group is not None:", "if False:",
        "test_frameworks.py::test_bad_settings_of_transformers_are_explained",
    ),
    Bug(
        "F499", "a closed loader can be iterated over", "loader.py", "        self.client._require_open(\"loop\")\n        with", "        with",
        "test_loader.py::test_loop_over_a_closed_loader_is_refused",
    ),
    Bug(
        "F499", "a loop goes on after the close", "loader.py", "        self.client._require_open(\"loop\")\n        if loop != ", "        if loop != ",
        "test_loader.py::test_loop_over_a_closed_loader_is_refused",
    ),
    Bug(
        "F504", "a late reply hides the finished tasks", "client.py",
        "_begin_fetch(finished):\n            return None\n        link = self._link\n        if not self", "_begin_fetch(()):\n            return None\n        link = self._link\n        if not self",
        "test_client.py::test_finishes_are_reported_after_a_late_reply",
    ),
    Bug(
        "F505", "tasks of a closed loader are lost", "loader.py", "            self.client._give_back(self.account.works(self._is_exact))\n", "",
        "test_loader.py::test_next_loader_of_a_client_has_the_tasks_of_the_last_one[loader]",
    ),
    Bug(
        "F505", "the task of a loop that was left is lost", "loader.py", "        self.client._hand_over()  #", "        #",
        "test_loader.py::test_next_loader_of_a_client_has_the_tasks_of_the_last_one[tasks]",
    ),
    Bug(
        "F506", "a lack of descriptors fails the task", "_reader.py", "except (errors.AgentLostError, errors.ResourceError):", "except errors.AgentLostError:",
        "test_loader.py::test_lack_of_descriptors_ends_the_loop_and_fails_no_task",
    ),
    Bug(
        "F506", "a lack of descriptors is a damaged package", "_link.py", 'raise errors.ResourceError(f"{op}: expected a file', 'raise errors.AgentError(f"{op}: expected a file',
        "test_link.py::test_descriptor_that_the_kernel_has_dropped_is_a_lack_of_resources",
    ),
    Bug(
        "F507", "a start needs room before it removes files", "torch/_checkpoints.py", "                    self._remove_uncommitted(name)  # first",
        "                    self._publish(step, name)\n                    self._remove_uncommitted(name)  # first", "test_checkpoints.py::test_start_removes_what_has_filled_the_disk",
    ),
    Bug(
        "F507", "a file that is not complete stays", "torch/_checkpoints.py", "            _remove(temporary)\n        raise\n", "            pass\n        raise\n",
        "test_checkpoints.py::test_file_is_synced_before_it_has_its_name",
    ),
    Bug(
        "F508", "files that are not complete are in the dataset", "records.py", 'f".{name}-{number:05d}.tmp")', 'f"{name}-{number:05d}.tmp")',
        "test_records.py::test_killed_writer_leaves_no_file_of_the_dataset",
    ),
    Bug(
        "F508", "two writers write the same files", "records.py", "            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n", "            pass\n",
        "test_records.py::test_killed_writer_leaves_no_file_of_the_dataset",
    ),
    Bug(
        "F509", "a stopped agent is waited for", "client.py", "return self._link.call(op, limit, wait=wait, **fields)", "return self._link.call(op, None, wait=wait, **fields)",
        "test_client.py::test_stopped_agent_counts_as_lost_after_the_timeout",
    ),
    Bug(
        "F509", "a group waits for a stopped agent", "client.py", "            if reply is None and time.monotonic() - self._requested > limit:", "            if False:",
        "test_client.py::test_stopped_agent_of_a_group_counts_as_lost",
    ),
    Bug(
        "F456", "skipped records overtake accumulated ones", "torch/_checkpoints.py", "        if self._open:  # the records", "        if False:  # the records",
        "test_checkpoints.py::test_skipped_records_do_not_overtake_accumulated_ones",
    ),
    Bug(
        "F400", "a file has its name before its content is on the disk", "torch/_checkpoints.py", "        _sync(temporary)\n        os.replace(temporary, path)\n    except",
        "        os.replace(temporary, path)\n    except", "test_checkpoints.py::test_file_is_synced_before_it_has_its_name",
    ),
    Bug(
        "F520", "a session after a restart does not say that it evaluates", "_commands.py", "        client._on_restart.append(self._announce)\n", "",
        "test_commands.py::test_model_is_evaluated_after_the_end_of_the_agent",
    ),
    Bug(
        "F530", "files of another number of shards stay", "records.py", "for path in old.difference(paths):", "for path in set(paths) - set(paths):",
        "test_records.py::test_no_files_of_another_number_of_shards_stay",
    ),
    Bug(
        "F530", "files of another number of shards are not found", "records.py", "-{digits}-of-{digits}", "-{digits}-of-{shards:05d}",
        "test_records.py::test_no_files_of_another_number_of_shards_stay",
    ),
    Bug(
        "F530", "writers with other numbers of shards do not meet", "records.py", 'f".{name}-{number:05d}.tmp")', 'f".{name}-{number:05d}-{shards}.tmp")',
        "test_records.py::test_killed_writer_leaves_no_file_of_the_dataset",
    ),
    Bug(
        "F531", "the end of the program is not noticed", "local.py", "has_ended = bool(select.select", "has_ended = False and bool(select.select",
        "test_client.py::test_program_that_ends_is_no_local_master",
    ),
    Bug(
        "F532", "each file that cannot be read is damaged", "records.py", "if _DAMAGE.search(text) else", "if text else",
        "test_records.py::test_bad_input_is_explained",
    ),
    Bug(
        "F533", "a file that another writer has completed is emptied", "records.py", "        if not is_own:", "        if self.file.closed:",
        "test_records.py::test_file_that_another_writer_has_just_completed_is_kept",
    ),
    Bug(
        "F521", "a further group of parameters is not trained", "torch/_optimizer.py", "        if self.param_groups:\n", "        if False:\n",
        "test_embedding.py::test_further_group_of_parameters_is_refused",
    ),
    Bug(
        "F566", "the end of an agent that starts is an error", "_agent.py", "            if code < 0:", "            if False:",
        "test_client.py::test_agent_that_is_killed_while_it_starts_is_started_again",
    ),
    Bug(
        "F567", "an evaluation counts records that were skipped", "_commands.py", '"records": work.records - self._skipped}', '"records": work.records}',
        "test_commands.py::test_evaluation_counts_the_records_that_the_function_received[some]",
    ),
    Bug(
        "F567", "a function evaluates no records", "_commands.py", "if not first:", "if False:",
        "test_commands.py::test_evaluation_counts_the_records_that_the_function_received[none]",
    ),
    Bug(
        "F568", "the agent waits for a master that has ended", "client.py", "            self._agent.process.kill()  #", "            pass  #",
        "test_client.py::test_close_after_the_end_of_the_own_master",
    ),
    Bug(
        "F569", "trainers with one name replace each other without end", "client.py", "        if self._brief == _MOST_BRIEF:", "        if False:",
        "test_client.py::test_one_of_two_trainers_with_one_name_ends_with_an_error",
    ),
    Bug(
        "F570", "the agent of a torchrun that a signal ends stays in the ring", "torch/elastic.py", "    if node is not None and node._agent is not None:", "    if False:",
        "test_elastic.py::test_node_that_a_signal_ends_leaves_immediately",
    ),
    Bug(
        "F571", "a program does not learn that the job of its ring has ended", "torch/elastic.py", "        if _JOB_ENDED in reason:", "        if False:",
        "test_elastic.py::test_program_that_starts_after_the_end_of_the_job_ends",
    ),
]  # fmt: skip


def outcome(bug: Bug) -> str:
    """Plant a bug, and return whether its test has found it."""
    try:
        return "caught" if fails(bug, LIMIT) else "NOT CAUGHT"
    except subprocess.TimeoutExpired:
        pass
    try:
        return "TEST FAILS WITHOUT IT" if fails(bug._replace(bad=bug.text), LIMIT / 2) else "caught"
    except subprocess.TimeoutExpired:
        return "TIMEOUT, ALSO WITHOUT IT"


def fails(bug: Bug, limit: float) -> bool:
    """Plant a bug, and return whether its test fails. It raises TimeoutExpired after `limit` seconds."""
    with tempfile.TemporaryDirectory() as work:
        shutil.copytree(SOURCE, pathlib.Path(work, "trainmaster"), ignore=shutil.ignore_patterns("__pycache__"))
        file = pathlib.Path(work, "trainmaster", bug.file)
        content = file.read_text()
        if content.count(bug.text) != 1:
            raise SystemExit(f"{bug.row} {bug.name}: expected the text once in {bug.file}, found it {content.count(bug.text)} times")
        file.write_text(content.replace(bug.text, bug.bad))
        command = [sys.executable, "-m", "pytest", "-m", "", "-x", "-p", "no:cacheprovider", f"tests/{bug.test}"]
        with pathlib.Path(work, "log").open("w+") as log:
            run = subprocess.Popen(
                command, cwd=SOURCE.parents[1], env={**os.environ, "PYTHONPATH": work}, stdout=log, stderr=log, start_new_session=True
            )
            try:
                code = run.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, 9)
                run.wait()
                raise
            if code not in (0, 1):
                log.seek(0)
                raise SystemExit(f"{bug.row} {bug.name}: pytest ended with {code}:\n{log.read()}")
            return code == 1


def main(word: str) -> None:
    """Plant the bugs with a word in their row or name."""
    missed = 0
    for bug in BUGS:
        if word in f"{bug.row} {bug.name}":
            found = outcome(bug)
            missed += found != "caught"
            print(f"{bug.row} {bug.name}: {found}: {bug.test}", flush=True)
    sys.exit(missed > 0)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
