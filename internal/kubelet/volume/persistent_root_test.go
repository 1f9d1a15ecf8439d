//go:build root

package volume

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestClaims(t *testing.T) {
	root := privateMounts(t)
	v := clusterVolumes(t, root)
	v.helperDirs = nil
	local := filepath.Join(root, "disk")
	if err := os.Mkdir(local, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(local, "file"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	onDisk := corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: local}}
	for name, test := range map[string]struct {
		source corev1.PersistentVolumeSource
		change func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)
		pod    func(*corev1.Pod)
		want   string
	}{
		"local":    {source: onDisk},
		"hostpath": {source: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: local, Type: pointer(corev1.HostPathDirectory)}}},
		"pending": {onDisk, func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) {
			c.Status.Phase = corev1.ClaimPending
		}, nil,
			`MountVolume.SetUp failed for volume "data" : error processing PVC default/pending: PVC is not bound`},
		"stolen": {onDisk, func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "other", UID: "u"}
		}, nil, "bound to PVC UID u, expected PVC UID"},
		"elsewhere": {onDisk, func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Operator = corev1.NodeSelectorOpExists
		}, nil, `MountVolume.NodeAffinity check failed for volume "pv-elsewhere" : no matching NodeSelectorTerms`},
		"missing": {corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: local + "/no"}}, nil, nil, `MountVolume.SetUp failed for volume "pv-missing" : path "` + local + `/no" does not exist`},
		"nfs":     {corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/"}}, nil, nil, `MountVolume.SetUp failed for volume "pv-nfs" : the host has no mount.nfs`},
		"noclaim": {onDisk, nil, func(p *corev1.Pod) { p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "absent" },
			`error processing PVC default/absent: failed to fetch PVC from API server: persistentvolumeclaims "absent" not found`},
		"device": {onDisk, nil, func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts, p.Spec.Containers[0].VolumeDevices = nil, []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
		}, "volume data has volumeMode Filesystem, but is specified in volumeDevices"},
		"nodriver": {corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "absent.example.com", VolumeHandle: "h"}}, nil, nil,
			`MountVolume.SetUp failed for volume "pv-nodriver" : driver name absent.example.com not found in the list of registered CSI drivers`},
		"ephemeral": {onDisk, nil, func(p *corev1.Pod) {
			p.Name = "x"
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
		}, `error processing PVC default/x-data: failed to fetch PVC from API server`},
	} {
		pod := bound(t, v, name, test.source, test.change)
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: pointer(int64(4321))}
		if test.pod != nil {
			test.pod(pod)
		}
		err := v.Mount(t.Context(), pod)
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := read(t, v.mounted(pod.UID, "data").path, "file"); got != "kept" || !reflect.DeepEqual(v.SupplementalGroups(pod.UID), []int64{777}) {
			t.Errorf("%s: %q, groups %v", name, got, v.SupplementalGroups(pod.UID))
		}
		if err := v.Unmount(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		if read(t, local, "file") != "kept" {
			t.Fatalf("%s: what the volume held is gone", name)
		}
	}
	info, _ := os.Stat(filepath.Join(local, "file"))
	if info.Sys().(*syscall.Stat_t).Gid != 4321 {
		t.Error("the fsGroup was not applied")
	}
}

// TestLocalVolumeAfterKill: a kubelet that was killed after it had mounted a local volume completes it when it starts again, once.
func TestLocalVolumeAfterKill(t *testing.T) {
	root := privateMounts(t)
	v := clusterVolumes(t, root)
	local := filepath.Join(root, "disk")
	file := filepath.Join(local, "file")
	if err := errors.Join(os.Mkdir(local, 0o755), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	pod := bound(t, v, "local", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: local}}, nil)
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: pointer(int64(4321))}
	target := v.dir(pod.UID, localPlugin, "pv-local")
	if err := errors.Join(os.MkdirAll(target, 0o755), bindPath(local, target)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []uint32{4321, 77} {
		if err := New(v.Options).Mount(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Sys().(*syscall.Stat_t).Gid; got != want {
			t.Errorf("the file belongs to the group %d, want %d", got, want)
		}
		// The pod may change it.
		if err := os.Chown(file, -1, 77); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Unmount(t.Context(), pod.UID); err != nil {
		t.Error(err)
	}
}
