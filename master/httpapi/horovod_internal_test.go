package httpapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"trainmaster/master/rendezvous"
)

// F341: a request that has observed an earlier generation, and continues after requests of the next generation, removes none of their values.
func TestLateRequestRemovesNoValueOfTheNextGeneration(t *testing.T) {
	observes, resume := make(chan struct{}), make(chan struct{})
	calls := make(chan uint64, 3) // the generation that a call observes
	h := &horovod{observe: func() (rendezvous.Ring, <-chan struct{}, error) {
		var r rendezvous.Ring
		if r.Number = <-calls; r.Number == 1 {
			close(observes)
			<-resume
		}
		return r, nil, nil
	}}
	routes := http.NewServeMux()
	h.route(routes)
	ask := func(method, body string) *httptest.ResponseRecorder {
		answer := httptest.NewRecorder()
		routes.ServeHTTP(answer, httptest.NewRequest(method, "/scope/key", strings.NewReader(body)))
		return answer
	}
	late, stored := make(chan struct{}), make(chan struct{})
	calls <- 1
	go func() {
		defer close(late)
		ask(http.MethodGet, "")
	}()
	<-observes
	calls <- 2
	go func() {
		defer close(stored)
		ask(http.MethodPut, "value")
	}()
	select {
	case <-stored:
	case <-time.After(300 * time.Millisecond): // it waits for the late request
	}
	close(resume)
	<-late
	<-stored
	calls <- 2
	if answer := ask(http.MethodGet, ""); answer.Code != http.StatusOK || answer.Body.String() != "value" {
		t.Errorf("expected the value of the current generation, found %d %q", answer.Code, answer.Body)
	}
}
