//go:build root

package volume

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

func TestFileVolumes(t *testing.T) {
	root := privateMounts(t)
	objects := objectsWithMap(map[string]string{"key": "one", "other": "two"})
	mode := pointer(int32(0o644))
	project := func(sources ...corev1.VolumeProjection) corev1.Volume {
		return corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: mode, Sources: sources}}}
	}
	for name, test := range map[string]struct {
		volume corev1.Volume
		want   map[string]string // path to "mode content"
	}{
		"config map": {configMapVolume("v", corev1.ConfigMapVolumeSource{}),
			map[string]string{"key": "-rw-r--r-- one", "other": "-rw-r--r-- two", "bin": "-rw-r--r-- \x00\xff"}},
		"config map, default mode": {configMapVolume("v", corev1.ConfigMapVolumeSource{DefaultMode: pointer(int32(0o400)), Items: []corev1.KeyToPath{{Key: "key", Path: "key"}}}),
			map[string]string{"key": "-r-------- one"}},
		"config map, items": {configMapVolume("v", corev1.ConfigMapVolumeSource{Items: []corev1.KeyToPath{
			{Key: "key", Path: "a/b/key", Mode: pointer(int32(0o400))}, {Key: "bin", Path: "bin"}}}),
			map[string]string{"a/b/key": "-r-------- one", "bin": "-rw-r--r-- \x00\xff"}},
		"config map, optional": {configMapVolume("v", corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: pointer(true)}),
			map[string]string{}},
		"config map, optional key": {configMapVolume("v", corev1.ConfigMapVolumeSource{Optional: pointer(true), Items: []corev1.KeyToPath{{Key: "absent", Path: "p"}, {Key: "key", Path: "q"}}}),
			map[string]string{"q": "-rw-r--r-- one"}},
		"secret": {corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "hidden", DefaultMode: mode}}},
			map[string]string{"password": "-rw-r--r-- x"}},
		"downward": {corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{DefaultMode: mode, Items: []corev1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}, Mode: pointer(int32(0o400))},
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels"}},
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu"}},
			{Path: "memory", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}},
		}}}}, map[string]string{"name": "-r-------- pod", "labels": `-rw-r--r-- app="x"`, "cpu": "-rw-r--r-- 2", "memory": "-rw-r--r-- 1024"}},
		"projected": {project(
			corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "map"}, Items: []corev1.KeyToPath{{Key: "key", Path: "same"}}}},
			corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "hidden"}, Items: []corev1.KeyToPath{{Key: "password", Path: "in/password"}}}},
			corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "absent"}, Optional: pointer(true)}},
			corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "same", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.uid"}}}}},
		), map[string]string{"same": "-rw-r--r-- uid-" + dirName("projected"), "in/password": "-rw-r--r-- x"}},
	} {
		v := testVolumes(root, objects)
		pod := testPod(test.volume)
		pod.UID = types.UID("uid-" + dirName(name))
		if err := v.Mount(t.Context(), pod); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		m := v.mounted(pod.UID, "v")
		plugin, inMemory := apiVolumePlugin(&test.volume)
		if want := filepath.Join(root, "pods", string(pod.UID), "volumes", strings.ReplaceAll(plugin, "/", "~"), "v"); m.path != want || !m.readOnly {
			t.Errorf("%s: at %s, read-only %v", name, m.path, m.readOnly)
		}
		if mounted, err := isMounted(m.path); err != nil || mounted != inMemory {
			t.Errorf("%s: in memory %v, %v", name, mounted, err)
		}
		seen := tree(t, m.path)
		for path := range seen {
			info, err := os.Stat(filepath.Join(m.path, path))
			if err != nil {
				t.Fatal(err)
			}
			seen[path] = info.Mode().String() + " " + seen[path]
		}
		if len(seen) != len(test.want) {
			t.Errorf("%s: %v", name, seen)
		}
		for path, want := range test.want {
			if seen[path] != want {
				t.Errorf("%s: %s is %q, want %q", name, path, seen[path], want)
			}
		}
		if err := v.Unmount(t.Context(), pod.UID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if entries, _ := os.ReadDir(v.podDir(pod.UID)); len(entries) != 0 {
			t.Errorf("%s: left %v", name, entries)
		}
	}
}

func TestTokenFile(t *testing.T) {
	root := privateMounts(t)
	source := corev1.Volume{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: pointer(int32(0o644)), Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: pointer(int64(3600))}}}}}}
	for name, test := range map[string]struct {
		security corev1.PodSecurityContext
		mode     string
		uid, gid uint32
	}{
		"everyone":  {corev1.PodSecurityContext{}, "-rw-r--r--", 0, 0},
		"one user":  {corev1.PodSecurityContext{RunAsUser: pointer(int64(1000))}, "-rw-------", 1000, 0},
		"one group": {corev1.PodSecurityContext{FSGroup: pointer(int64(2000))}, "-rw-r-----", 0, 2000},
		"both":      {corev1.PodSecurityContext{RunAsUser: pointer(int64(1000)), FSGroup: pointer(int64(2000))}, "-rw-r-----", 1000, 2000},
	} {
		v := testVolumes(root, &fakeObjects{})
		v.tokens.request = (&issuer{}).request
		pod := testPod(source)
		pod.Spec.SecurityContext = &test.security
		if err := v.Mount(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(v.mounted(pod.UID, "token").path + "/token")
		if err != nil {
			t.Fatal(err)
		}
		stat := info.Sys().(*syscall.Stat_t)
		if info.Mode().String() != test.mode || stat.Uid != test.uid || stat.Gid != test.gid {
			t.Errorf("%s: %v %d:%d", name, info.Mode(), stat.Uid, stat.Gid)
		}
		if err := v.Unmount(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
	}
}
