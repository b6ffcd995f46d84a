package ring

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testJob = [16]byte{7}

func quiet() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// listen returns n endpoints, and their membership in a generation.
func listen(t testing.TB, n int, c Config) ([]*Endpoint, []Member) {
	t.Helper()
	c.Log = quiet()
	endpoints, members := make([]*Endpoint, n), make([]Member, n)
	for i := range n {
		e, err := Listen("127.0.0.1:0", testJob, c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		endpoints[i], members[i] = e, Member{fmt.Sprintf("m%d", i), e.Addr().String()}
	}
	return endpoints, members
}

// form returns the groups of a generation, by rank.
func form(t testing.TB, endpoints []*Endpoint, members []Member, generation uint64) []*Group {
	t.Helper()
	groups := make([]*Group, len(endpoints))
	each(t, len(endpoints), func(i int) (err error) {
		groups[i], err = endpoints[i].Form(context.Background(), Membership{generation, i, members})
		return err
	})
	t.Cleanup(func() {
		var closing sync.WaitGroup
		for _, g := range groups {
			closing.Go(g.Close)
		}
		closing.Wait()
	})
	return groups
}

func newGroups(t testing.TB, n int, c Config) []*Group {
	t.Helper()
	endpoints, members := listen(t, n, c)
	return form(t, endpoints, members, 1)
}

// each calls do for 0 to n-1 at the same time, and fails the test with the first error.
func each(t testing.TB, n int, do func(int) error) {
	t.Helper()
	errs := all(n, do)
	for i, err := range errs {
		if err != nil {
			t.Fatalf("member %d: %v", i, err)
		}
	}
}

func all(n int, do func(int) error) []error {
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { errs[i] = do(i) })
	}
	running.Wait()
	return errs
}

// numbers returns values of very different sizes, so that another order of additions gives other bits.
func numbers(r *rand.Rand, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(math.Ldexp(r.Float64()-0.5, r.IntN(40)))
	}
	return v
}

func naive(vectors [][]float32) []float32 {
	sum := append([]float32(nil), vectors[0]...)
	for _, v := range vectors[1:] {
		for i := range sum {
			sum[i] += v[i]
		}
	}
	return sum
}

func sameBits(a, b []float32) error {
	for i := range b {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return fmt.Errorf("element %d of %d: expected %v, found %v", i, len(b), b[i], a[i])
		}
	}
	return nil
}

// All members have the bits of the sum in rank order, for any number of members and any length.
func TestAllReduceEqualsSumInRankOrder(t *testing.T) {
	for n := 1; n <= 8; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			groups := newGroups(t, n, Config{})
			check := func(t rapid.TB, seed uint64, length int) {
				r := rand.New(rand.NewPCG(seed, 1))
				vectors, results := make([][]float32, n), make([][]float32, n)
				for i := range vectors {
					vectors[i] = numbers(r, length)
					results[i] = append([]float32(nil), vectors[i]...)
				}
				want := naive(vectors)
				for i, err := range all(n, func(i int) error {
					if err := groups[i].AllReduce(context.Background(), results[i]); err != nil {
						return err
					}
					return sameBits(results[i], want)
				}) {
					if err != nil {
						t.Fatalf("member %d of %d: %v", i, n, err)
					}
				}
			}
			rapid.Check(t, func(t *rapid.T) {
				check(t, rapid.Uint64().Draw(t, "seed"), rapid.IntRange(0, 5000).Draw(t, "length"))
			})
			for i, length := range []int{0, 1, n - 1, n, n + 1, n * blockFloats, 3*n*blockFloats + 5} {
				check(t, uint64(i), length)
			}
		})
	}
}

// Collectives of all kinds follow each other on the same connections, while members start them at different times.
func TestCollectivesFollowEachOther(t *testing.T) {
	const n = 5
	groups := newGroups(t, n, Config{})
	each(t, n, func(i int) error {
		r := rand.New(rand.NewPCG(uint64(i), 2))
		for step := range 60 {
			if r.IntN(4) == 0 {
				time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond) // so that each member is late at times
			}
			messages, err := groups[i].Gather(context.Background(), fmt.Append(nil, i, " ", step))
			if err != nil {
				return err
			}
			for rank, m := range messages {
				if want := fmt.Sprint(rank, " ", step); string(m) != want {
					return fmt.Errorf("message of %d: expected %q, found %q", rank, want, m)
				}
			}
			vector := []float32{float32(i), 1, float32(step)}
			if err := groups[i].AllReduce(context.Background(), vector); err != nil {
				return err
			}
			if err := sameBits(vector, []float32{10, n, float32(n * step)}); err != nil {
				return err
			}
			root, content := step%n, make([]byte, 3*maxBlock/2)
			if i == root {
				for k := range content {
					content[k] = byte(k + step)
				}
			}
			receivers := []int{(root + 1) % n, (root + 3) % n}
			if err := groups[i].Broadcast(context.Background(), root, receivers, content); err != nil {
				return err
			}
			if (i == receivers[0] || i == receivers[1]) && (content[maxBlock] != byte(step) || content[len(content)-1] != byte(len(content)-1+step)) {
				return errors.New("the copy differs")
			}
		}
		return nil
	})
}

// A member that is gone in the middle of a sum ends it for all others, and all name the same member.
func TestLostMemberEndsSumAndIsNamed(t *testing.T) {
	const n, lost = 4, 2
	groups := newGroups(t, n, Config{})
	each(t, n, func(i int) error {
		if i == lost {
			for _, c := range groups[i].conns { // as if its process was killed
				if c != nil {
					_ = c.Close()
				}
			}
			return nil
		}
		err := groups[i].AllReduce(context.Background(), make([]float32, 10*blockFloats))
		var peer *PeerError
		if !errors.As(err, &peer) || peer.Rank != lost || peer.Member.ID != "m2" {
			return fmt.Errorf("expected an error of member 2, found %v", err)
		}
		if again := groups[i].AllReduce(context.Background(), nil); again == nil || again.Error() != err.Error() {
			return fmt.Errorf("expected the same error again, found %v", again)
		}
		return nil
	})
}

// A member that only one other member has lost is named by all others.
func TestMemberLostByOneIsNamedByAll(t *testing.T) {
	const n, lost = 4, 3
	groups := newGroups(t, n, Config{})
	each(t, n, func(i int) error {
		if i == lost {
			return groups[i].conns[0].Close()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := groups[i].Gather(ctx, nil)
		var peer *PeerError
		if !errors.As(err, &peer) || peer.Rank != lost {
			return fmt.Errorf("expected an error of member 3, found %v", err)
		}
		return nil
	})
}

// A member whose connection is open, but that sends nothing, is lost after Config.Silence.
func TestSilentMemberIsLost(t *testing.T) {
	endpoints, members := listen(t, 2, Config{Silence: 300 * time.Millisecond})
	m := Membership{1, 1, members}
	var group *Group
	var silent net.Conn
	each(t, 2, func(i int) (err error) {
		if i == 0 {
			group, err = endpoints[0].Form(context.Background(), Membership{1, 0, members})
			return err
		}
		silent, err = endpoints[1].greeted(context.Background(), &forming{Membership: m, digest: m.digest()}, 0)
		return err
	})
	defer silent.Close()
	defer group.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := group.AllReduce(ctx, make([]float32, 100))
	var peer *PeerError
	if !errors.As(err, &peer) || peer.Rank != 1 || !errors.Is(err, ErrSilent) {
		t.Fatalf("expected a silent member 1, found %v", err)
	}
}

// A member that computes for longer than Config.Silence is not lost: its pings arrive.
func TestSlowMemberIsNotLost(t *testing.T) {
	const silence = 300 * time.Millisecond
	groups := newGroups(t, 3, Config{Silence: silence})
	each(t, 3, func(i int) error {
		if i == 1 {
			time.Sleep(4 * silence) // it computes
		}
		_, err := groups[i].Gather(context.Background(), nil)
		return err
	})
}

// F343: a member on a slow link is not lost: its bytes arrive without a pause of Config.Silence, although a block takes longer.
func TestMemberOnASlowLinkIsNotLost(t *testing.T) {
	const silence = time.Second
	endpoints, members := listen(t, 2, Config{Silence: silence})
	members[0].Address = slowLink(t, members[0].Address, 4*blockFloats/2) // a block takes 2 s
	groups := form(t, endpoints, members, 1)
	each(t, 2, func(i int) error {
		return groups[i].AllReduce(context.Background(), make([]float32, 2*blockFloats))
	})
}

// slowLink forwards connections to addr, with at most rate bytes a second in each direction. It returns the address of the link.
func slowLink(t *testing.T, addr string, rate int) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var owned sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		owned.Wait() // the groups are closed before
	})
	pump := func(to, from net.Conn) {
		defer to.Close()
		b := make([]byte, rate/100)
		for {
			n, err := from.Read(b)
			if _, bad := to.Write(b[:n]); err != nil || bad != nil {
				return
			}
			time.Sleep(time.Duration(n) * time.Second / time.Duration(rate)) // the link is slow
		}
	}
	owned.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", addr)
			if err != nil {
				_ = a.Close()
				continue
			}
			owned.Go(func() { pump(a, b) })
			owned.Go(func() { pump(b, a) })
		}
	})
	return l.Addr().String()
}

// A member to which another one says that this member is lost does not report itself.
func TestMemberDoesNotNameItself(t *testing.T) {
	groups := newGroups(t, 2, Config{})
	c := groups[0].conns[1]
	c.writing.Lock()
	err := c.write(frame{kind: abort, block: 1}, []byte("lost"), time.Second, nil)
	c.writing.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	_, err = groups[1].Gather(t.Context(), nil)
	var peer *PeerError
	if !errors.Is(err, ErrEnded) || !errors.As(err, &peer) || peer.Rank != 0 {
		t.Errorf("expected that member 0 has ended the generation, found %v", err)
	}
}

func TestContextEndsCollective(t *testing.T) {
	groups := newGroups(t, 2, Config{})
	cause := errors.New("stopped by the test")
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(20*time.Millisecond, func() { cancel(cause) })
	if err := groups[0].AllReduce(ctx, make([]float32, 100)); !errors.Is(err, cause) {
		t.Fatalf("expected the cause, found %v", err)
	}
	if err := groups[1].AllReduce(context.Background(), make([]float32, 100)); !errors.Is(err, ErrEnded) { // and no failure of a member
		t.Fatalf("expected that member 0 has ended the generation, found %v", err)
	}
}

func TestVectorsOfOtherLengthsAreRefused(t *testing.T) {
	groups := newGroups(t, 2, Config{})
	for i, err := range all(2, func(i int) error { return groups[i].AllReduce(context.Background(), make([]float32, 100+100*i)) }) {
		if err == nil {
			t.Errorf("member %d: expected an error", i)
		}
	}
}

// The last message of a member that closes the group arrives, also if another member is late.
func TestCloseDeliversLastMessage(t *testing.T) {
	groups := newGroups(t, 3, Config{})
	each(t, 3, func(i int) error {
		if i == 2 {
			time.Sleep(100 * time.Millisecond) // the others wait for it, and member 0 closes immediately
		}
		messages, err := groups[i].Gather(context.Background(), fmt.Append(nil, i))
		if err != nil {
			return err
		}
		if string(messages[0]) != "0" {
			return fmt.Errorf("found %q", messages)
		}
		groups[i].Close()
		return nil
	})
}

// Members of an older generation, of another job and of another list are refused.
func TestHandshakeIsRefused(t *testing.T) {
	endpoints, members := listen(t, 2, Config{Forming: 500 * time.Millisecond})
	form(t, endpoints, members, 5)
	old := Membership{4, 1, members}
	if conn, err := endpoints[1].greeted(t.Context(), &forming{Membership: old, digest: old.digest()}, 0); !errors.Is(err, ErrOldGeneration) || conn != nil {
		t.Errorf("expected an old generation, found %v", err)
	}
	if _, err := endpoints[1].Form(t.Context(), Membership{5, 1, members}); !errors.Is(err, ErrOldGeneration) {
		t.Errorf("the same generation again: found %v", err)
	}
	if _, err := endpoints[1].Form(t.Context(), Membership{6, 2, members}); err == nil {
		t.Error("a rank without a member: expected an error")
	}
	other, err := Listen("127.0.0.1:0", [16]byte{8}, Config{Log: quiet(), Forming: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, err = other.Form(t.Context(), Membership{6, 1, []Member{members[0], {"x", other.Addr().String()}}})
	var peer *PeerError
	if !errors.As(err, &peer) || peer.Rank != 0 || !strings.Contains(err.Error(), "one of another job") {
		t.Errorf("another job: found %v", err)
	}
}

// Members learn a generation at different times.
func TestFormWaitsForSlowMember(t *testing.T) {
	endpoints, members := listen(t, 3, Config{})
	groups := make([]*Group, 3)
	each(t, 3, func(i int) (err error) {
		time.Sleep(time.Duration(i*i) * 40 * time.Millisecond) // one after the other
		groups[2-i], err = endpoints[2-i].Form(t.Context(), Membership{1, 2 - i, members})
		return err
	})
	each(t, 3, func(i int) error {
		_, err := groups[i].Gather(t.Context(), nil)
		groups[i].Close()
		return err
	})
}

func TestFormNamesAbsentMember(t *testing.T) {
	endpoints, members := listen(t, 3, Config{Forming: 300 * time.Millisecond})
	for i, err := range all(2, func(i int) error {
		_, err := endpoints[i].Form(t.Context(), Membership{1, i, members})
		return err
	}) {
		var peer *PeerError
		if !errors.As(err, &peer) || peer.Rank != 2 {
			t.Errorf("member %d: expected an error of member 2, found %v", i, err)
		}
	}
}

// Bytes that are no handshake end only their own connection.
func TestFormAfterOtherBytesSucceeds(t *testing.T) {
	endpoints, members := listen(t, 2, Config{})
	for _, text := range []string{"", "GET / HTTP/1.1\r\nHost: x\r\n\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "TMRG", string(make([]byte, 1<<16))} {
		for _, m := range members {
			conn, err := net.Dial("tcp", m.Address)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(conn, text)
			if text == "" || text == "TMRG" {
				defer conn.Close() // it stays open
				continue
			}
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("expected a closed connection, found %d bytes, %v", n, err)
			}
			_ = conn.Close()
		}
	}
	groups := form(t, endpoints, members, 1)
	each(t, 2, func(i int) error {
		_, err := groups[i].Gather(t.Context(), nil)
		return err
	})
}

// The length of a payload is checked before memory is allocated for it.
func TestFrameWithTooManyBytesIsRefused(t *testing.T) {
	for kind, most := range map[kind]uint32{ping: 0, contribution: maxBlock, sum: maxBlock, message: maxBlock, copied: maxBlock, abort: maxReason} {
		for length, want := range map[uint32]bool{most: true, most + 1: false, 1<<32 - 1: false} {
			var raw [frameSize]byte
			raw[0] = byte(kind)
			binary.LittleEndian.PutUint32(raw[12:], length)
			if _, err := decodeFrame(&raw); (err == nil) != want {
				t.Errorf("kind %d with %d bytes: %v", kind, length, err)
			}
		}
	}
}

// A flipped bit in any byte of a frame is found before its block is used.
func TestFlippedBitIsFound(t *testing.T) {
	payload := []byte("0123456789abcdef")
	var raw [frameSize]byte
	frame{kind: sum, operation: 3, block: 1}.encode(&raw, payload)
	for i := range (len(raw) + len(payload)) * 8 {
		r, p := raw, append([]byte(nil), payload...)
		if i/8 < len(raw) {
			r[i/8] ^= 1 << (i % 8)
		} else {
			p[i/8-len(raw)] ^= 1 << (i % 8)
		}
		f, err := decodeFrame(&r)
		if err == nil {
			err = f.check(&r, p)
		}
		if err == nil {
			t.Errorf("bit %d: not found", i)
		}
	}
}

// Any bytes decode without a panic, and encode to the same bytes.
func FuzzHandshake(f *testing.F) {
	good := hello{job: testJob, generation: 3, from: 2, to: 1, members: 9}.encode()
	f.Add(good[:])
	f.Add([]byte("TMRG"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var raw [helloSize]byte
		copy(raw[:], b)
		h, err := decodeHello(&raw)
		if err != nil {
			return
		}
		again := h.encode()
		if back, err := decodeHello(&again); err != nil || back != h {
			t.Fatalf("%+v: %+v, %v", h, back, err)
		}
		if h.err() == nil && h.status != welcome {
			t.Fatalf("status %d is no refusal", h.status)
		}
	})
}

func FuzzFrame(f *testing.F) {
	var good [frameSize]byte
	frame{kind: message, operation: 1}.encode(&good, []byte("x"))
	f.Add(good[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		var raw [frameSize]byte
		copy(raw[:], b)
		fr, err := decodeFrame(&raw)
		if err != nil {
			return
		}
		if fr.length > maxBlock || fr.kind == ping && fr.length > 0 {
			t.Fatalf("frame with %d bytes was accepted", fr.length)
		}
		_ = fr.check(&raw, make([]byte, fr.length))
	})
}
