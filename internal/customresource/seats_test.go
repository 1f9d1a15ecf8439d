package customresource_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"skiff/internal/apiserver"
	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
	"skiff/internal/apiserver/fairness"
)

// authorizedRequests allows and counts all requests. Those that it counts have their seats.
type authorizedRequests struct{ count atomic.Int64 }

func (a *authorizedRequests) Authorize(context.Context, *authz.Attributes) (authz.Decision, string, error) {
	a.count.Add(1)
	return authz.Allow, "", nil
}

// oneSeat lets all users but system:masters share one seat. One request may be queued.
func oneSeat(c *apiserver.Config) {
	level := bootstrap.SuggestedPriorityLevelConfigurationGlobalDefault.DeepCopy()
	level.UID, level.Spec.Limited.LimitResponse.Queuing = "level-uid", &flowcontrolv1.QueuingConfiguration{Queues: 1, HandSize: 1, QueueLengthLimit: 1}
	one, none := int32(1), int32(0)
	limited := level.Spec.Limited
	limited.NominalConcurrencyShares, limited.LendablePercent, limited.BorrowingLimitPercent = &one, &none, &none
	schema := bootstrap.SuggestedFlowSchemaGlobalDefault.DeepCopy()
	schema.UID = "schema-uid"
	c.Fairness = fairness.New(6)
	c.Fairness.Configure([]*flowcontrolv1.PriorityLevelConfiguration{level}, []*flowcontrolv1.FlowSchema{schema})
	c.Limits = apiserver.Limits{Timeout: time.Minute, ReadOnly: 1}
}

// A request that waits for a conversion webhook, or for another request that does, has no seats: other requests are served. When the webhook has
// responded, all of them are.
func TestConversionNeedsNoSeats(t *testing.T) {
	webhook, authorized := &converter{blocked: make(chan struct{})}, &authorizedRequests{}
	admin := newServer(t, convertedDefinition, webhook, oneSeat, func(c *apiserver.Config) { c.Authorizer = authorized })
	admin.send("POST", widgets, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"color":"red"}}`).expect(201)
	guest := admin.as(authn.User{Username: "guest", Groups: []string{"system:authenticated"}})
	const inV2 = "v2/namespaces/ns/widgets"
	requests := []struct {
		method, path, body, header string
		code                       int
	}{
		{"GET", inV2 + "/a", "", "Accept: application/json", 200},
		{"GET", inV2 + "/a", "", "Accept: application/json", 200}, // waits for the first one
		{"GET", inV2, "", "Accept: application/json", 200},
		{"GET", inV2, "", "Accept: application/json;as=Table;v=v1;g=meta.k8s.io", 200},
		{"GET", inV2 + "?fieldSelector=spec.paint%3Dred", "", "Accept: application/json", 200},
		{"GET", inV2 + "?fieldSelector=spec.paint%3Dblue", "", "Accept: application/json", 200},
		{"PATCH", inV2 + "/a", `{"metadata":{"labels":{"x":"y"}}}`, "Content-Type: application/merge-patch+json", 200},
		{"POST", inV2, `{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"b"},"spec":{"paint":"green"}}`, "Content-Type: application/json", 201},
	}
	type result struct {
		request int
		*response
	}
	results := make(chan result, len(requests))
	for i, r := range requests {
		before := authorized.count.Load()
		go func() { results <- result{i, guest.send(r.method, r.path, r.body, r.header)} }()
		for authorized.count.Load() == before {
			time.Sleep(time.Millisecond)
		}
		if got := guest.send("GET", widgets+"/a", ""); got.code != 200 {
			t.Errorf("while %s %s waits, another request gets %d %s", r.method, r.path, got.code, got.text)
		}
	}
	close(webhook.blocked)
	for range requests {
		if got := <-results; got.code != requests[got.request].code {
			t.Errorf("%+v: %d %s", requests[got.request], got.code, got.text)
		}
	}
}
