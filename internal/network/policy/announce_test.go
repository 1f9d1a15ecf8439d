package policy

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/network/cni"
	"skiff/internal/podstate"
)

// While the API server cannot be reached, a static pod starts after a short time. Another pod, which has come from the API, does not start.
func TestAnnouncementsWithoutAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := client.New(&rest.Config{Host: "https://127.0.0.1:1"}, api.Scheme(), api.Named())
		if err != nil {
			t.Fatal(err)
		}
		static, other := testPod("default/static", thisNode, ""), testPod("default/other", thisNode, "")
		static.Annotations = map[string]string{podstate.ConfigSourceAnnotationKey: "file"}
		pods := map[types.UID]*corev1.Pod{"1": static, "2": other}
		// Its informers do not run: they have never read anything.
		p, err := New(Config{
			Informers: client.NewInformers(c), NodeName: thisNode, Table: "unused", Log: slog.New(slog.DiscardHandler),
			KubeletPod: func(uid types.UID) (*corev1.Pod, bool) { return pods[uid], pods[uid] != nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		announce := func(name, uid string) (time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			started := time.Now()
			err := p.Announce(ctx, cni.Announcement{Namespace: "default", Pod: name, UID: uid, Addresses: []netip.Addr{netip.MustParseAddr("10.42.1.9")}})
			return time.Since(started), err
		}
		if waited, err := announce("static", "1"); err != nil || waited != staticPodWait {
			t.Errorf("a static pod has waited %s: %v", waited, err)
		}
		if waited, err := announce("other", "2"); err == nil || waited != time.Minute || !strings.Contains(err.Error(), "have not been read") {
			t.Errorf("another pod has waited %s: %v", waited, err)
		}
		// Nobody knows this pod, so nothing of it is kept.
		if _, err := announce("unknown", "3"); err == nil {
			t.Error("an unknown pod was confirmed")
		}
		if announcementOf(p, "unknown") != nil {
			t.Error("the announcement of an unknown pod is kept")
		}
	})
}

// A pod that has replaced an announced one is not the announced one, unless it is the mirror pod of a static pod that runs.
func TestPodOfAnnouncement(t *testing.T) {
	now := time.Now()
	pod := func(uid types.UID, created time.Time, annotations map[string]string) *corev1.Pod {
		p := testPod("default/pod", thisNode, "")
		p.UID, p.CreationTimestamp, p.Annotations = uid, metav1.NewTime(created), annotations
		return p
	}
	before, after := now.Add(-time.Minute), now.Add(time.Minute)
	static := map[string]string{podstate.ConfigSourceAnnotationKey: "file"}
	mirror := map[string]string{podstate.ConfigSourceAnnotationKey: "file", corev1.MirrorPodAnnotationKey: "hash"}
	ordinary, staticPod := pod("own", before, nil), pod("own", before, static)
	for _, row := range []struct {
		name                  string
		object, running, want *corev1.Pod
	}{
		{"in neither", nil, nil, nil},
		{"in the kubelet", nil, ordinary, ordinary},
		{"in the API", ordinary, nil, ordinary},
		{"an older pod in the API", pod("other", before, nil), ordinary, ordinary},
		{"replaced", pod("other", after, nil), ordinary, nil},
		{"replaced while the old one runs", pod("other", after, nil), staticPod, nil},
		{"a static pod with a UID of its own, its mirror made later", pod("mirror", after, mirror), staticPod, staticPod},
		{"a static pod that was removed", pod("mirror", after, mirror), nil, nil},
	} {
		a := &announcement{uid: "own", at: now}
		if got := a.podOf(row.object, row.running); got != row.want {
			t.Errorf("%s: %v, want %v", row.name, got, row.want)
		}
	}
}

// announcementOf returns the announcement of a pod in the namespace default, or nil.
func announcementOf(p *Policy, name string) *announcement {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.announced[types.NamespacedName{Namespace: "default", Name: name}]
}
