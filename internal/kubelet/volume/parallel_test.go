package volume

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestHungVolume: a volume whose server does not respond does not keep the others of its pod from being mounted. The errors are in the order of the spec.
func TestHungVolume(t *testing.T) {
	v := testVolumes(t.TempDir(), objectsWithMap(map[string]string{"key": "one"}))
	v.helperDirs = []string{t.TempDir()}
	responds := filepath.Join(t.TempDir(), "responds")
	script := "#!/bin/sh\nwhile ! [ -e " + responds + " ]; do sleep 0.01; done\necho no such export >&2; exit 32\n"
	if err := os.WriteFile(filepath.Join(v.helperDirs[0], "mount.nfs"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	pod := testPod(
		corev1.Volume{Name: "share", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "files", Path: "/"}}},
		corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		configMapVolume("absent", corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}}),
		configMapVolume("map", corev1.ConfigMapVolumeSource{}),
	)
	mounted := make(chan error, 1)
	go func() { mounted <- v.Mount(t.Context(), pod) }()
	for deadline := time.Now().Add(20 * time.Second); v.mounted(pod.UID, "scratch") == nil || v.mounted(pod.UID, "map") == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Error("the other volumes are not mounted while one hangs")
			break
		}
	}
	select {
	case err := <-mounted:
		t.Fatalf("all are mounted: %v", err)
	default:
	}
	if err := os.WriteFile(responds, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := <-mounted
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 2 {
		t.Fatalf("error %v, want one for each volume that is not mounted", err)
	}
	for i, volume := range []string{"share", "absent"} {
		if !strings.HasPrefix(joined.Unwrap()[i].Error(), "MountVolume.SetUp failed for volume \""+volume+"\" : ") {
			t.Errorf("error %d is %v, want that of %s", i, joined.Unwrap()[i], volume)
		}
	}
}

// TestIndependentVolumes: what may be the same directory is set up in the order of the spec.
func TestIndependentVolumes(t *testing.T) {
	source := func(change func(*corev1.VolumeSource)) (s corev1.VolumeSource) {
		change(&s)
		return s
	}
	claim := func(name string) corev1.VolumeSource {
		return source(func(s *corev1.VolumeSource) {
			s.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
		})
	}
	hostPath := source(func(s *corev1.VolumeSource) { s.HostPath = &corev1.HostPathVolumeSource{Path: "/a"} })
	emptyDir := source(func(s *corev1.VolumeSource) { s.EmptyDir = &corev1.EmptyDirVolumeSource{} })
	nfs := source(func(s *corev1.VolumeSource) { s.NFS = &corev1.NFSVolumeSource{} })
	ephemeral := source(func(s *corev1.VolumeSource) { s.Ephemeral = &corev1.EphemeralVolumeSource{} })
	pod := testPod(
		corev1.Volume{Name: "0", VolumeSource: claim("x")}, corev1.Volume{Name: "1", VolumeSource: hostPath}, corev1.Volume{Name: "2", VolumeSource: nfs},
		corev1.Volume{Name: "3", VolumeSource: emptyDir}, corev1.Volume{Name: "4", VolumeSource: claim("x")}, corev1.Volume{Name: "5", VolumeSource: hostPath},
		corev1.Volume{Name: "6", VolumeSource: claim("pod-7")}, corev1.Volume{Name: "7", VolumeSource: ephemeral}, corev1.Volume{Name: "8", VolumeSource: emptyDir},
	)
	used := usedVolumes(pod)
	delete(used, "8")
	want := [][]int{{1, 5}, {3}, {0, 4}, {2}, {6, 7}}
	if got := independentVolumes(pod, used); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
