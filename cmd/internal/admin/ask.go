package admin

import (
	"context"
	"fmt"
	"strings"

	"trainmaster/cmd/internal/view"
	"trainmaster/etcdstore"
	"trainmaster/master/grpcapi"
	"trainmaster/master/strategy"
	pb "trainmaster/proto/trainmaster/v1"
	"trainmaster/taskqueue"
)

// AskQueues requests the counts, then the lists. The job continues between two requests.
func AskQueues(ctx context.Context, l *Leader) (view.Queues, error) {
	s, err := AskStatus(ctx, l)
	if err != nil {
		return view.Queues{}, err
	}
	q := view.NewQueues(s)
	for req := (&pb.ListTasksRequest{Job: l.Job}); ; {
		err := l.Ask(ctx, func(ctx context.Context, client pb.AdminClient) error {
			reply, err := client.ListTasks(ctx, req)
			for _, t := range reply.GetTasks() {
				q.Add(t)
			}
			req.PageToken = reply.GetNextPageToken()
			return err
		})
		if err != nil || req.PageToken == "" {
			return q, err
		}
	}
}

// ReadLiteral decodes the state in etcd at one revision. It needs no master.
func ReadLiteral(ctx context.Context, store *etcdstore.Store, from Location) (view.LiteralQueues, error) {
	queue, values, err := ReadQueue(ctx, store, from)
	if err != nil {
		return view.LiteralQueues{}, err
	}
	return view.NewLiteralQueues(queue, values)
}

// AskStatus requests the status of the job from its leader.
func AskStatus(ctx context.Context, l *Leader) (s view.Status, err error) {
	err = l.Ask(ctx, func(ctx context.Context, client pb.AdminClient) error {
		reply, err := client.Status(ctx, &pb.StatusRequest{Job: l.Job})
		if err == nil {
			s = view.NewStatus(reply)
		}
		return err
	})
	return s, err
}

// StoredStatus reads the status of a job without a leader from etcd: the job has ended, or no process uses its directory. Its speed
// is unknown.
func StoredStatus(ctx context.Context, l *Leader) (view.Status, error) {
	queue, _, err := ReadQueue(ctx, l.store, l.location)
	if err != nil {
		return view.Status{}, err
	}
	overview := queue.Overview()
	value, _, err := l.store.Value(ctx, taskqueue.StrategyKey)
	if err != nil {
		return view.Status{}, fmt.Errorf("read %s: %w", taskqueue.StrategyKey, err)
	}
	if value != nil {
		state, err := strategy.DecodeState(value)
		if err != nil {
			return view.Status{}, fmt.Errorf("read %s: %w", taskqueue.StrategyKey, err)
		}
		overview.Strategy = new(state.Overview())
	}
	if value, _, err = l.store.Value(ctx, taskqueue.PopulationKey); err != nil {
		return view.Status{}, fmt.Errorf("read %s: %w", taskqueue.PopulationKey, err)
	}
	if value != nil {
		state, err := strategy.DecodePopulation(value)
		if err != nil {
			return view.Status{}, fmt.Errorf("read %s: %w", taskqueue.PopulationKey, err)
		}
		overview.Population = new(state.Overview())
	}
	return view.NewStoredStatus(grpcapi.StatusReply(&overview), l.location.startCommand()), nil
}

// AskTasks requests the tasks in a state, which is one of [view.TaskStates].
func AskTasks(ctx context.Context, l *Leader, state string) ([]view.Task, error) {
	list := []view.Task{}
	req := &pb.ListTasksRequest{Job: l.Job}
	if state != view.TaskStates[0] {
		req.States = []pb.TaskState{pb.TaskState(pb.TaskState_value["TASK_STATE_"+strings.ToUpper(state)])}
	}
	for {
		err := l.Ask(ctx, func(ctx context.Context, client pb.AdminClient) error {
			reply, err := client.ListTasks(ctx, req)
			for _, t := range reply.GetTasks() {
				list = append(list, view.NewTask(t))
			}
			req.PageToken = reply.GetNextPageToken()
			return err
		})
		if err != nil || req.PageToken == "" {
			return list, err
		}
	}
}

// AskPods requests the pods of the job.
func AskPods(ctx context.Context, l *Leader) (v view.Pods, err error) {
	err = l.Ask(ctx, func(ctx context.Context, client pb.AdminClient) error {
		reply, err := client.ListPods(ctx, &pb.ListPodsRequest{Job: l.Job})
		v = view.NewPods(reply)
		return err
	})
	return v, err
}

// AskRing requests the ring of the job.
func AskRing(ctx context.Context, l *Leader) (v view.Ring, err error) {
	err = l.Ask(ctx, func(ctx context.Context, _ pb.AdminClient) error {
		stream, err := pb.NewRendezvousClient(l.conn).Watch(ctx, &pb.RingWatchRequest{Job: l.Job})
		if err != nil {
			return err
		}
		u, err := stream.Recv()
		v = view.NewRing(u)
		return err
	})
	return v, err
}

// AskTrainers requests the trainers of the job. If it fails between two pages, it returns the trainers of the pages before.
func AskTrainers(ctx context.Context, l *Leader) ([]view.Trainer, error) {
	list := []view.Trainer{}
	for req := (&pb.ListTrainersRequest{Job: l.Job}); ; {
		err := l.Ask(ctx, func(ctx context.Context, client pb.AdminClient) error {
			reply, err := client.ListTrainers(ctx, req)
			for _, t := range reply.GetTrainers() {
				list = append(list, view.NewTrainer(t))
			}
			req.PageToken = reply.GetNextPageToken()
			return err
		})
		if err != nil || req.PageToken == "" {
			return list, err
		}
	}
}
