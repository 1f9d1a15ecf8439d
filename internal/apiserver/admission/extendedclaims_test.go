package admission

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// watches hands out one watch after the other.
type watches chan watch.Interface

func (w watches) Watch(ctx context.Context, gvr schema.GroupVersionResource, _ string, _ *internalversion.ListOptions) (watch.Interface, error) {
	if gvr.Resource != "resourceclaims" {
		return nil, errors.New("not followed")
	}
	select {
	case next := <-w:
		return next, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// The claims of a pod follow those of the server, also those that were deleted while the watch was interrupted.
func TestExtendedClaims(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	plugin, watcher, done := newResourceQuota(nil, nil), watches(make(chan watch.Interface)), make(chan error, 1)
	go func() { done <- Chain{plugin}.Follow(ctx, watcher) }()
	pod := func(uid types.UID) *corev1.Pod { return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}} }
	if _, err := plugin.claims.of(pod("p")); err == nil {
		t.Error("claims are known before they were listed")
	}
	check := func(what string, want map[types.UID]string) {
		t.Helper()
		for uid, names := range want {
			claims, err := plugin.claims.of(pod(uid))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, c := range claims {
				got = append(got, c.Name)
			}
			slices.Sort(got)
			if strings.Join(got, " ") != names {
				t.Errorf("%s: the claims of %s are %v, want %s", what, uid, got, names)
			}
		}
	}
	plain := extendedClaim("plain", "p")
	plain.Annotations = nil
	first := watch.NewFake()
	watcher <- first
	for _, claim := range []*resourcev1.ResourceClaim{extendedClaim("a", "p"), extendedClaim("b", "p"), extendedClaim("c", "q"), plain} {
		first.Add(claim)
	}
	first.Action(watch.Bookmark, &resourcev1.ResourceClaim{})
	moved := extendedClaim("b", "q")
	first.Modify(moved)
	first.Add(extendedClaim("d", "p"))
	first.Delete(extendedClaim("c", "q"))
	first.Action(watch.Bookmark, &resourcev1.ResourceClaim{}) // what came before it has been applied
	check("changes", map[types.UID]string{"p": "a d", "q": "b", "r": ""})
	first.Stop()
	second := watch.NewFake()
	watcher <- second
	second.Add(extendedClaim("a", "p"))
	second.Action(watch.Bookmark, &resourcev1.ResourceClaim{})
	second.Action(watch.Bookmark, &resourcev1.ResourceClaim{})
	check("after an interruption", map[types.UID]string{"p": "a", "q": ""})
	if len(plugin.claims.owners) != 1 || len(plugin.claims.byPod) != 1 {
		t.Errorf("%d claims of %d pods are kept", len(plugin.claims.owners), len(plugin.claims.byPod))
	}
	cancel()
	second.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
