package node

import (
	"regexp"
	"testing"

	"skiff/test/cluster"
)

// TestKubeletMetrics checks that a node has the metrics that dashboards and alerts use.
func TestKubeletMetrics(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	kubectl(t, c, `
apiVersion: v1
kind: Pod
metadata: {name: counted}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "`+busybox+`", command: [sleep, "1000"], readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}}
`, "apply", "-f", "-")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "pod/counted", "--timeout=60s")
	node := nodeName(t, c)
	shown := kubectl(t, c, "", "get", "--raw", "/api/v1/nodes/"+node+"/proxy/metrics") + kubectl(t, c, "", "get", "--raw", "/api/v1/nodes/"+node+"/proxy/metrics/probes")
	for _, want := range []string{
		`kubelet_node_name\{node="` + node + `"\} 1`, `kubelet_running_pods 1`, `kubelet_running_containers\{container_state="running"\} 1`,
		`kubelet_pod_start_duration_seconds_count 1`, `kubelet_pod_worker_duration_seconds_bucket\{operation_type="create",le="0.005"\} \d+`,
		`kubelet_runtime_operations_total\{operation_type="run_podsandbox"\} 1`, `kubelet_runtime_operations_total\{operation_type="start_container"\} 1`,
		`kubelet_runtime_operations_duration_seconds_count\{operation_type="create_container"\} 1`, `kubelet_run_podsandbox_duration_seconds_count\{runtime_handler=""\} 1`,
		`kubelet_started_pods_total 1`, `kubelet_started_containers_total\{container_type="container"\} 1`, `kubelet_pleg_relist_duration_seconds_count [1-9]\d*`,
		`kubelet_pleg_last_seen_seconds \d`, `kubelet_desired_pods\{static=""\} 1`, `kubelet_active_pods\{static=""\} 1`, `process_resident_memory_bytes \d`,
		`volume_manager_total_volumes\{plugin_name="kubernetes.io/projected",state="actual_state_of_world"\} 1`,
		`volume_manager_total_volumes\{plugin_name="kubernetes.io/projected",state="desired_state_of_world"\} 1`,
		`prober_probe_total\{container="c",namespace="default",pod="counted",pod_uid="[-0-9a-f]+",probe_type="Readiness",result="successful"\} [1-9]`,
		`prober_probe_duration_seconds_count\{container="c",namespace="default",pod="counted",probe_type="Readiness"\} [1-9]`,
	} {
		if !regexp.MustCompile(`(?m)^` + want).MatchString(shown) {
			t.Errorf("no line of the metrics matches %s", want)
		}
	}
	if t.Failed() {
		t.Log(regexp.MustCompile(`(?m)^(#.*|go_.*)\n`).ReplaceAllString(shown, ""))
	}
}
