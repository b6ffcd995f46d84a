package component_test

import (
	"reflect"
	"testing"

	"trainmaster/master/component"
	"trainmaster/taskqueue"
)

func TestMailboxKeepsTheNewestOfEachKey(t *testing.T) {
	m := component.NewMailbox(taskqueue.OnSessionsChanged, taskqueue.OnUnblocked)
	for floor := range uint64(3) { // nothing takes them: posting must not block
		m.Post(taskqueue.SessionsChanged{Floor: floor})
		m.Post(taskqueue.Unblocked{On: taskqueue.WaitTask})
		m.Post(taskqueue.Unblocked{On: taskqueue.WaitFlush})
		m.Post(taskqueue.JobEnded{})
	}
	select {
	case <-m.Changed():
	default:
		t.Error("the mailbox gives no signal")
	}
	want := []taskqueue.Effect{taskqueue.SessionsChanged{Floor: 2}, taskqueue.Unblocked{On: taskqueue.WaitTask}, taskqueue.Unblocked{On: taskqueue.WaitFlush}}
	if got := m.Take(); !reflect.DeepEqual(got, want) {
		t.Errorf("took %+v: expected %+v", got, want)
	}
	if got := m.Take(); len(got) > 0 {
		t.Errorf("took %+v twice", got)
	}
}
