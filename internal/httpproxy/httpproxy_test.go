package httpproxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Each fault applies to the given number of requests with its methods.
func TestFaults(t *testing.T) {
	received := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received++
		w.Header().Set("Tag", r.Header.Get("If-Match")+r.Header.Get("Range"))
		io.WriteString(w, "0123456789") //nolint:errcheck // of the test
	}))
	defer server.Close()
	p, err := New(strings.TrimPrefix(server.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for name, test := range map[string]struct {
		fault   Fault
		status  int
		body    string
		tag     string
		failure bool
		arrived int
	}{
		"none":          {Fault{}, 200, "0123456789", "tagbytes=0-", false, 1},
		"other method":  {Fault{Methods: "PUT POST", Status: 503}, 200, "0123456789", "tagbytes=0-", false, 1},
		"refusal":       {Fault{Methods: "GET", Status: 503}, 503, "<Error><Code>ServiceUnavailable</Code></Error>\n", "", false, 0},
		"lost answer":   {Fault{LoseAnswer: true}, 0, "", "", true, 1},
		"cut":           {Fault{CutAfter: 4}, 200, "0123", "tagbytes=0-", true, 1},
		"missing bytes": {Fault{Missing: 3}, 200, "0123456", "tagbytes=0-", false, 1},
		"damage":        {Fault{Damage: true}, 200, "1123456789", "tagbytes=0-", false, 1},
		"other header":  {Fault{Headers: http.Header{"Tag": {"other"}}}, 200, "0123456789", "other", false, 1},
		"no header":     {Fault{Headers: http.Header{"Tag": nil}}, 200, "0123456789", "", false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			received = 0
			p.Requests()
			p.Inject(1, test.fault)
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.Addr(), nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("If-Match", "tag")
			request.Header.Set("Range", "bytes=0-")
			answer, err := client.Do(request)
			status, body, tag := 0, []byte(nil), ""
			if err == nil {
				status, tag = answer.StatusCode, answer.Header.Get("Tag")
				body, err = io.ReadAll(answer.Body)
				answer.Body.Close()
			}
			if status != test.status || string(body) != test.body || tag != test.tag || (err != nil) != test.failure || received != test.arrived || p.Requests() != 1 {
				t.Errorf("status %d, body %q, tag %q, error %v, %d arrived", status, body, tag, err, received)
			}
			p.Inject(0, Fault{})
		})
	}
}
