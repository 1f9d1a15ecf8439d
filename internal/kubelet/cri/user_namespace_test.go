package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestUserNamespaces(t *testing.T) {
	dir := t.TempDir()
	all := NewUserNamespaces(dir)
	first := func(uid string) uint32 {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, uid), 0o755); err != nil {
			t.Fatal(err)
		}
		pod := specPod(func(p *corev1.Pod) { p.UID, p.Spec.HostUsers = types.UID(uid), new(false) })
		user, err := all.Of(pod, "", true)
		if err != nil {
			t.Fatal(err)
		}
		if len(user.UIDs) != 1 || user.UIDs[0].Length != 65536 || user.UIDs[0].HostID != user.GIDs[0].HostID || user.UIDs[0].ContainerID != 0 {
			t.Errorf("%s: %v", uid, user)
		}
		return user.UIDs[0].HostID
	}
	if a, b, again := first("a"), first("b"), first("a"); a != 65536 || b != 2*65536 || again != a {
		t.Errorf("ranges %d, %d and then %d", a, b, again)
	}
	all = NewUserNamespaces(dir) // the kubelet was restarted
	if err := os.RemoveAll(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if b, c, d := first("b"), first("c"), first("d"); b != 2*65536 || c != 65536 || d != 3*65536 {
		t.Errorf("after a restart %d, %d, %d", b, c, d)
	}
	for text, want := range map[string]string{"{}": "invalid user namespace record", "x": "invalid character", `{"uidMappings":[{"hostId":0,"length":65536}],"gidMappings":[{"hostId":0,"length":65536}]}`: "invalid user namespace record"} {
		if err := os.WriteFile(filepath.Join(dir, "b", "userns"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		pod := specPod(func(p *corev1.Pod) { p.UID, p.Spec.HostUsers = "b", new(false) })
		if _, err := all.Of(pod, "", true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("record %s: %v, want %s", text, err, want)
		}
	}
	for _, hostUsers := range []*bool{nil, new(true)} {
		if user, err := all.Of(specPod(func(p *corev1.Pod) { p.Spec.HostUsers = hostUsers }), "", false); err != nil || user.message().Mode != runtimeapi.NamespaceMode_NODE {
			t.Errorf("%v, %v", user, err)
		}
	}
	own := specPod(func(p *corev1.Pod) { p.Spec.HostUsers = new(false) })
	if _, err := all.Of(own, "", false); err == nil || err.Error() != "can't set `spec.hostUsers: false`, runtime does not support user namespaces" {
		t.Error(err)
	}
	if _, err := all.Of(own, "odd", false); err == nil || err.Error() != "can't set `spec.hostUsers: false`, RuntimeClass handler \"odd\" does not support user namespaces" {
		t.Error(err)
	}
}
