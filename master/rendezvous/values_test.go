package rendezvous

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

// change applies a change that must be valid.
func change(t *testing.T, v Value, instance string, sequence uint64, op Operation) (Value, Change) {
	t.Helper()
	next, reply, isNew, err := v.Apply(instance, sequence, op)
	if err != nil || !isNew {
		t.Fatalf("%T: new %v, %v", op, isNew, err)
	}
	next, err = DecodeValue(next.Encode())
	if err != nil {
		t.Fatal(err)
	}
	return next, reply
}

func TestChangesOfAValue(t *testing.T) {
	v, reply := change(t, Value{}, "a", 1, AddValue{Amount: 2})
	if reply.Number != 2 {
		t.Fatalf("expected 2, the value of a missing number is 0, found %d", reply.Number)
	}
	v, reply = change(t, v, "b", 1, AddValue{Amount: -5})
	if reply.Number != -3 || string(v.Content) != "-3" {
		t.Fatalf("expected -3, found %d, %q", reply.Number, v.Content)
	}
	if v, reply = change(t, v, "b", 2, CompareSetValue{Expected: []byte("x"), Desired: []byte("y")}); string(reply.Content) != "-3" || string(v.Content) != "-3" {
		t.Errorf("another value: expected -3, found %q, %q", reply.Content, v.Content)
	}
	if v, reply = change(t, v, "b", 3, CompareSetValue{Expected: []byte("-3"), Desired: []byte("y")}); string(reply.Content) != "y" || string(v.Content) != "y" {
		t.Errorf("the expected value: expected y, found %q, %q", reply.Content, v.Content)
	}
	if v, reply = change(t, v, "a", 2, DeleteValue{}); !reply.Found || !v.Absent {
		t.Errorf("delete: expected a value before it and none after it, found %+v", v)
	}
	if v, reply = change(t, v, "a", 3, DeleteValue{}); reply.Found {
		t.Error("second delete: expected no value")
	}
	if v, reply = change(t, v, "a", 4, CompareSetValue{Expected: []byte("e"), Desired: []byte("d")}); string(reply.Content) != "e" || !v.Absent {
		t.Errorf("no value: expected the expected one, found %q, %+v", reply.Content, v)
	}
	if v, _ = change(t, v, "a", 5, CompareSetValue{Desired: []byte("d")}); string(v.Content) != "d" || v.Absent {
		t.Errorf("no value and none expected: expected d, found %+v", v)
	}
	if v, _ = change(t, v, "a", 6, SetValue{}); v.Absent || len(v.Content) != 0 {
		t.Errorf("an empty value is a value: found %+v", v)
	}
}

// F430: the reply to a change is lost, and the member repeats it.
func TestRepeatedChangeOfAValueHasNoEffect(t *testing.T) {
	v, first := change(t, Value{}, "a", 7, AddValue{Amount: 1})
	v, _ = change(t, v, "b", 1, AddValue{Amount: 1})
	next, reply, isNew, err := v.Apply("a", 7, AddValue{Amount: 1})
	if err != nil || isNew || reply.Number != first.Number || string(next.Content) != "2" {
		t.Errorf("expected the first reply %d and the value 2, found %d, %q, new %v, %v", first.Number, reply.Number, next.Content, isNew, err)
	}
	if _, _, _, err := v.Apply("a", 6, AddValue{Amount: 1}); !errors.Is(err, ErrBadValue) {
		t.Errorf("an earlier change: expected an error, found %v", err)
	}
}

// F430: the reply to a compare-and-set is lost, and another member changes the value before the repetition.
func TestRepeatedCompareAndSet(t *testing.T) {
	swap := func(expected, desired string) CompareSetValue {
		return CompareSetValue{Expected: []byte(expected), Desired: []byte(desired)}
	}
	v, _ := change(t, Value{}, "a", 1, swap("", "mine"))
	v, _ = change(t, v, "b", 1, SetValue{Content: []byte("newer")})
	v, _ = change(t, v, "c", 1, swap("other", "never"))
	v, _ = change(t, v, "d", 1, swap("newer", "newest"))
	for instance, c := range map[string]struct {
		op   CompareSetValue
		want string
	}{"a": {swap("", "mine"), "mine"}, "c": {swap("other", "never"), "newest"}, "d": {swap("newer", "newest"), "newest"}} {
		next, reply, isNew, err := v.Apply(instance, 1, c.op)
		if err != nil || isNew || string(reply.Content) != c.want || string(next.Content) != "newest" {
			t.Errorf("%s: expected the reply %q and the value newest, found %q, %q, new %v, %v", instance, c.want, reply.Content, next.Content, isNew, err)
		}
	}
	v, _ = change(t, v, "b", 2, DeleteValue{})
	if _, reply, _, _ := v.Apply("c", 1, swap("other", "never")); string(reply.Content) != "other" {
		t.Errorf("no value: expected the expected one, found %q", reply.Content)
	}
}

// F436: thousands of members change a value of the largest size. etcd accepts at most 1.5 MiB.
func TestValueThatManyMembersChangeIsBounded(t *testing.T) {
	v, reply, _, _ := Value{}.Apply(fmt.Sprintf("%064d", 0), math.MaxUint64, CompareSetValue{Desired: make([]byte, MaxValue)})
	for i := range MaxValueInstances {
		v.Last[fmt.Sprintf("%064d", i)] = reply
	}
	if n := len(v.Encode()); n > 1<<20 || len(v.Last) != MaxValueInstances {
		t.Errorf("expected the changes of %d instances in at most 1 MiB, found %d in %d bytes", MaxValueInstances, len(v.Last), n)
	}
	if _, _, _, err := v.Apply("another", 1, SetValue{}); !errors.Is(err, ErrTooManyValues) {
		t.Errorf("another instance: expected an error, found %v", err)
	}
}

func TestInvalidChangesOfAValue(t *testing.T) {
	text, _ := change(t, Value{}, "a", 1, SetValue{Content: []byte("text")})
	large, _ := change(t, Value{}, "a", 1, AddValue{Amount: math.MaxInt64})
	small, _ := change(t, Value{}, "a", 1, AddValue{Amount: math.MinInt64})
	for name, c := range map[string]struct {
		value Value
		op    Operation
		want  string
	}{
		"text":        {text, AddValue{Amount: 1}, `expected a decimal number as the value, found "text"`},
		"sum above":   {large, AddValue{Amount: 1}, "does not fit into 64 bits"},
		"sum below":   {small, AddValue{Amount: -1}, "does not fit into 64 bits"},
		"24577 bytes": {text, SetValue{Content: make([]byte, MaxValue+1)}, "expected at most 24576 bytes, found 24577"},
	} {
		if next, _, _, err := c.value.Apply("b", 1, c.op); err == nil || !strings.Contains(err.Error(), c.want) || string(next.Content) != string(c.value.Content) {
			t.Errorf("%s: expected %q and the same value, found %v, %q", name, c.want, err, next.Content)
		}
	}
	for _, key := range []string{"", strings.Repeat("k", MaxValueKey+1), "a\x00b", "\xff"} {
		if err := CheckValueKey(key); !errors.Is(err, ErrBadValue) {
			t.Errorf("%q: expected an error, found %v", key, err)
		}
	}
	for _, path := range []string{ValuesPrefix + "x/k", ValuesPrefix + "1", "/ring"} {
		if _, _, err := ParseValuesKey(path); err == nil {
			t.Errorf("%s: expected an error", path)
		}
	}
	for _, b := range []string{"{", `{"format":2}`} {
		if _, err := DecodeValue([]byte(b)); err == nil {
			t.Errorf("%s: expected an error", b)
		}
	}
}
