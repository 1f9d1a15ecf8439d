package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/apiserver/authn"
)

// Follow reports objects that were deleted while it did not follow as deleted ones, before all others are known.
func TestFollow(t *testing.T) {
	s := newTestServer(t)
	local := s.Local(authn.User{Username: "test", Groups: []string{authn.GroupMasters}})
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	create := func(name string) {
		s.add("pods", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}})
	}
	var events []string
	followed := make(chan struct{}, 1)
	h := &FollowHandler[*corev1.Pod]{
		Apply:  func(pod *corev1.Pod) { events = append(events, "apply "+pod.Name) },
		Remove: func(name string, _ types.UID) { events = append(events, "remove "+name) },
		Synced: func() {
			events = append(events, "synced")
			followed <- struct{}{}
		},
		Fail: func(err error, _ time.Duration) { t.Errorf("failed: %v", err) },
	}
	names := map[string]bool{}
	once := func(want string) {
		t.Helper()
		events = nil
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := follow(ctx, local, pods, h, names)
			done <- err
		}()
		<-followed
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(events, ", "); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	create("a")
	create("b")
	once("apply a, apply b, synced")
	if got := s.do("DELETE", "/api/v1/namespaces/ns/pods/a"); got.code != 200 {
		t.Fatal(fmt.Sprint(got.code, " ", string(got.body)))
	}
	create("c")
	once("apply b, apply c, remove a, synced")
	if got := slices.Sorted(maps.Keys(names)); strings.Join(got, " ") != "b c" {
		t.Errorf("names: %v", got)
	}
}
