package node

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"skiff/test/cluster"
	"skiff/test/csidriver"
)

const csiObjects = `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: disk.example.com}
spec: {attachRequired: true}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: disk}
provisioner: disk.example.com
allowVolumeExpansion: true
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  storageClassName: disk
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 16Mi}}
`

const csiUser = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  securityContext: {runAsUser: 1000}
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, 'echo NAME >> /data/users; exec sleep 1000']
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`

// TestCSIDriver: a volume of a CSI driver is provisioned, attached, mounted, measured, expanded while a container uses it, kept for the next pod, detached
// and deleted.
func TestCSIDriver(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	defer func() {
		if t.Failed() {
			out, _ := kubectlCommand(c, "", "get", "pods,pvc,pv,volumeattachments,csinodes,events", "-o", "yaml")
			t.Logf("%s\n%s", out, c.Server[0].Log(40))
		}
	}()
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	driver := &csidriver.Driver{Name: "disk.example.com", NodeName: nodeName(t, c), Root: filepath.Join(c.Dir, "data/kubelet"), Config: config}
	if err := driver.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := driver.Stop(); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "the driver is registered", func() bool {
		return kubectl(t, c, "", "get", "csinodes", "-o", "jsonpath={.items[*].spec.drivers[*].name}") == driver.Name
	})
	kubectl(t, c, csiObjects, "apply", "-f", "-")
	run := func(name string) {
		t.Helper()
		kubectl(t, c, strings.NewReplacer("NAME", name, "IMAGE", busybox).Replace(csiUser), "apply", "-f", "-")
		kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/"+name, "--timeout=120s")
	}
	size := func(pod string) string {
		fields := strings.Fields(kubectl(t, c, "", "exec", pod, "--", "df", "-k", "/data"))
		return fields[len(fields)-5]
	}
	run("first")
	if got := size("first"); got != "16384" {
		t.Errorf("the volume has %s KiB", got)
	}
	if used := kubectl(t, c, "", "get", "nodes", "-o", "jsonpath={.items[0].status.volumesInUse} {.items[0].status.volumesAttached[*].name}"); strings.Count(used, "kubernetes.io/csi/disk.example.com^pvc-") != 2 {
		t.Errorf("the node reports %s", used)
	}
	if want, calls := []string{"attach", "stage here", "publish"}, driver.Calls(); !slices.Equal(calls, want) {
		t.Errorf("calls %q, want %q", calls, want)
	}
	eventually(t, "the stats summary has the volume", func() bool {
		var summary statsapi.Summary
		if err := json.Unmarshal([]byte(kubectl(t, c, "", "get", "--raw", "/api/v1/nodes/"+nodeName(t, c)+"/proxy/stats/summary")), &summary); err != nil {
			t.Fatal(err)
		}
		for _, pod := range summary.Pods {
			for _, volume := range pod.VolumeStats {
				if volume.PVCRef != nil && volume.PVCRef.Name == "data" {
					return *volume.CapacityBytes == 16<<20 && *volume.UsedBytes > 0
				}
			}
		}
		return false
	})

	// The size is compared once a minute.
	kubectl(t, c, "", "patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"32Mi"}}}}`)
	kubectl(t, c, "", "wait", "--for=jsonpath={.status.capacity.storage}=32Mi", "pvc/data", "--timeout=150s")
	if got := size("first"); got != "32768" {
		t.Errorf("the volume has %s KiB after its expansion", got)
	}
	if rest := kubectl(t, c, "", "get", "pvc", "data", "-o", "jsonpath={.status.conditions[*].type} {.status.allocatedResourceStatuses}"); strings.Contains(rest, "Resiz") {
		t.Errorf("the claim still has %s", rest)
	}
	if calls := driver.Calls(); !slices.Equal(calls, []string{"expand 33554432"}) {
		t.Errorf("calls %q", calls)
	}

	kubectl(t, c, "", "delete", "pod", "first", "--timeout=60s")
	run("second")
	if got := kubectl(t, c, "", "exec", "second", "--", "cat", "/data/users"); got != "first\nsecond\n" {
		t.Errorf("the volume has %q", got)
	}
	kubectl(t, c, "", "delete", "pod/second", "pvc/data", "--timeout=60s")
	eventually(t, "the volume is detached and deleted", func() bool {
		left := kubectl(t, c, "", "get", "pv,volumeattachments", "-o", "name")
		return left == "" && len(driver.Volumes()) == 0
	})
	if used := kubectl(t, c, "", "get", "nodes", "-o", "jsonpath={.items[0].status.volumesInUse}{.items[0].status.volumesAttached}"); used != "" {
		t.Errorf("the node reports %s", used)
	}
}
