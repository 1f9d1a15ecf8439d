package policy_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"skiff/internal/store"
	"skiff/internal/store/memory"
)

// silentStore is shared with other servers. While it is silent it does not say its revision.
type silentStore struct {
	store.Store
	silent atomic.Bool
}

func (s *silentStore) Shared() bool { return true }

func (s *silentStore) Current(ctx context.Context) (store.Revision, error) {
	if s.silent.Load() {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return s.Store.Current(ctx)
}

// Policies that have changed are read from the cache: writes do not wait for a store that does not respond.
func TestSilentStore(t *testing.T) {
	backend := &silentStore{Store: memory.New()}
	s := newServerOn(t, backend, nil)
	s.makeNamespace()
	s.validate("p", `validations: [{expression: "object.metadata.name != 'bad'"}]`)
	s.must("DELETE", group+"validatingadmissionpolicybindings/p-0", "{}")
	if got := s.configMap("bad", ""); got.code != http.StatusCreated {
		t.Fatalf("%d %s", got.code, got.body)
	}
	backend.silent.Store(true)
	s.must("POST", group+"validatingadmissionpolicybindings", `{metadata: {name: b}, spec: {policyName: p, validationActions: [Deny]}}`)
	if got := s.configMap("good", ""); got.code != http.StatusCreated {
		t.Errorf("%d %s", got.code, got.body)
	}
	if got := s.configMap("bad", ""); got.code != http.StatusUnprocessableEntity {
		t.Errorf("%d %s", got.code, got.body)
	}
}

// Policies whose resources are not served are enforced, because another server may serve them, and do not forbid other writes.
func TestDisabledResources(t *testing.T) {
	for _, names := range [][]string{
		{"validatingadmissionpolicies"}, {"mutatingadmissionpolicybindings"},
		{"validatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"},
	} {
		disabled := map[schema.GroupVersionResource]bool{}
		for _, name := range names {
			disabled[admissionregistrationv1.SchemeGroupVersion.WithResource(name)] = true
		}
		backend := memory.New()
		s, other := newServerOn(t, backend, disabled), newServerOn(t, backend, nil)
		s.makeNamespace()
		if got := s.configMap("good", ""); got.code != http.StatusCreated {
			t.Errorf("without %v: %d %s", names, got.code, got.body)
			continue
		}
		other.validate("p", `validations: [{expression: "object.metadata.name != 'bad'"}]`)
		denied := func() bool {
			path := "/api/v1/namespaces/team/configmaps?dryRun=All"
			return s.as("admin", "POST", path, "metadata: {name: bad}").code == http.StatusUnprocessableEntity
		}
		for deadline := time.Now().Add(time.Minute); !denied(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("without %v the policy is not enforced", names)
			}
		}
	}
}
