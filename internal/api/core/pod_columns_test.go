package core

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/kind/kindtest"
)

func TestPodRows(t *testing.T) {
	kindtest.ColumnsDescribed(t, Pod)
	kindtest.Row(t, Pod, testPod(podStatus(`{phase: Pending}`)), "p", "0/1", "Pending", "0", "5m", "<none>", "<none>", "<none>", "<none>")

	ago := func(d time.Duration) string { return kindtest.Now.Add(-d).Format(time.RFC3339) }
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = &testNow.Now }
	for _, c := range []struct {
		name                    string
		ready, status, restarts string
		changes                 []func(*corev1.Pod)
	}{
		{"running", "1/1", "Running", "0", []func(*corev1.Pod){podStatus(`{phase: Running, containerStatuses: [{name: web, ready: true, state: {running: {}}}]}`)}},
		{"running, not ready", "0/1", "Running", "0", []func(*corev1.Pod){podStatus(`{phase: Running, containerStatuses: [{name: web, state: {running: {}}}]}`)}},
		{"restarted", "1/1", "Running", "3 (2m ago)", []func(*corev1.Pod){podStatus(`{phase: Running, containerStatuses: [{name: web, ready: true, restartCount: 3, state: {running: {}}, lastState: {terminated: {exitCode: 1, finishedAt: "` + ago(2*time.Minute) + `"}}}]}`)}},
		{"in a loop", "0/1", "CrashLoopBackOff", "9", []func(*corev1.Pod){podStatus(`{phase: Running, containerStatuses: [{name: web, restartCount: 9, state: {waiting: {reason: CrashLoopBackOff}}}]}`)}},
		{"completed", "0/1", "Completed", "0", []func(*corev1.Pod){podStatus(`{phase: Succeeded, containerStatuses: [{name: web, state: {terminated: {exitCode: 0, reason: Completed}}}]}`)}},
		{"ended by a signal", "0/1", "Signal:9", "0", []func(*corev1.Pod){podStatus(`{phase: Failed, containerStatuses: [{name: web, state: {terminated: {exitCode: 137, signal: 9}}}]}`)}},
		{"ended with a code", "0/1", "ExitCode:3", "0", []func(*corev1.Pod){podStatus(`{phase: Failed, containerStatuses: [{name: web, state: {terminated: {exitCode: 3}}}]}`)}},
		{"evicted", "0/1", "Evicted", "0", []func(*corev1.Pod){podStatus(`{phase: Failed, reason: Evicted}`)}},
		{"gated", "0/1", "SchedulingGated", "0", []func(*corev1.Pod){podStatus(`{phase: Pending, conditions: [{type: PodScheduled, status: "False", reason: SchedulingGated}]}`)}},
		{"one of two completed, ready", "1/2", "Running", "0", []func(*corev1.Pod){podSpec(`containers: [{name: a}, {name: b}]`), podStatus(`{phase: Running, conditions: [{type: Ready, status: "True"}], containerStatuses: [{name: a, state: {terminated: {reason: Completed, exitCode: 0}}}, {name: b, ready: true, state: {running: {}}}]}`)}},
		{"one of two completed, not ready", "1/2", "NotReady", "0", []func(*corev1.Pod){podSpec(`containers: [{name: a}, {name: b}]`), podStatus(`{phase: Running, containerStatuses: [{name: a, state: {terminated: {reason: Completed, exitCode: 0}}}, {name: b, ready: true, state: {running: {}}}]}`)}},
		{"one completed, one failed", "0/2", "Error", "0", []func(*corev1.Pod){podSpec(`containers: [{name: a}, {name: b}]`), podStatus(`{phase: Failed, containerStatuses: [{name: a, state: {terminated: {reason: Completed, exitCode: 0}}}, {name: b, state: {terminated: {reason: Error, exitCode: 1}}}]}`)}},
		{"initializing", "0/1", "Init:0/2", "0", []func(*corev1.Pod){podSpec(`initContainers: [{name: a}, {name: b}]`), podStatus(`{phase: Pending, initContainerStatuses: [{name: a, state: {running: {}}}, {name: b, state: {waiting: {reason: PodInitializing}}}]}`)}},
		{"the second of two", "0/1", "Init:1/2", "0", []func(*corev1.Pod){podSpec(`initContainers: [{name: a}, {name: b}]`), podStatus(`{phase: Pending, initContainerStatuses: [{name: a, state: {terminated: {exitCode: 0}}}, {name: b, state: {waiting: {reason: PodInitializing}}}]}`)}},
		{"init container in a loop", "0/1", "Init:CrashLoopBackOff", "4", []func(*corev1.Pod){podSpec(`initContainers: [{name: a}]`), podStatus(`{phase: Pending, initContainerStatuses: [{name: a, restartCount: 4, state: {waiting: {reason: CrashLoopBackOff}}}]}`)}},
		{"init container failed", "0/1", "Init:Error", "0", []func(*corev1.Pod){podSpec(`initContainers: [{name: a}]`), podStatus(`{phase: Pending, initContainerStatuses: [{name: a, state: {terminated: {exitCode: 1, reason: Error}}}]}`)}},
		{"init container ended with a code", "0/1", "Init:ExitCode:5", "0", []func(*corev1.Pod){podSpec(`initContainers: [{name: a}]`), podStatus(`{phase: Pending, initContainerStatuses: [{name: a, state: {terminated: {exitCode: 5}}}]}`)}},
		{"initialized: restarts begin anew", "1/1", "Running", "1", []func(*corev1.Pod){podSpec(`initContainers: [{name: a}]`), podStatus(`{phase: Running, initContainerStatuses: [{name: a, restartCount: 7, state: {terminated: {exitCode: 0}}}], containerStatuses: [{name: web, ready: true, restartCount: 1, state: {running: {}}}]}`)}},
		{"with a sidecar", "2/2", "Running", "3", []func(*corev1.Pod){podSpec(`initContainers: [{name: a, restartPolicy: Always}]`), podStatus(`{phase: Running, initContainerStatuses: [{name: a, ready: true, started: true, restartCount: 2, state: {running: {}}}], containerStatuses: [{name: web, ready: true, restartCount: 1, state: {running: {}}}]}`)}},
		{"terminating", "1/1", "Terminating", "0", []func(*corev1.Pod){deleted, podStatus(`{phase: Running, containerStatuses: [{name: web, ready: true, state: {running: {}}}]}`)}},
		{"ended and going", "0/1", "Succeeded", "0", []func(*corev1.Pod){deleted, podStatus(`{phase: Succeeded}`)}},
		{"on a lost node", "0/1", "Unknown", "0", []func(*corev1.Pod){deleted, podStatus(`{phase: Running, reason: NodeLost}`)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			row := Pod.Row(testPod(c.changes...), kindtest.Now)
			if got, want := fmt.Sprint(row[1:4]), fmt.Sprint([]any{c.ready, c.status, c.restarts}); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
	wide := testPod(podSpec(`{nodeName: node, readinessGates: [{conditionType: a}, {conditionType: b}, {conditionType: c}]}`),
		podStatus(`{phase: Running, podIPs: [{ip: 1.1.1.1}], nominatedNodeName: m, conditions: [{type: a, status: "True"}, {type: b, status: "False"}]}`))
	kindtest.Row(t, Pod, wide, "p", "0/1", "Running", "0", "5m", "1.1.1.1", "node", "m", "1/3")
}

func TestPodRowConditions(t *testing.T) {
	for phase, want := range map[corev1.PodPhase]string{
		corev1.PodSucceeded: "The pod has completed successfully.", corev1.PodFailed: "The pod failed.", corev1.PodRunning: "",
	} {
		got := Pod.RowConditions(testPod(func(p *corev1.Pod) { p.Status.Phase = phase }))
		if want == "" && got != nil || want != "" && (len(got) != 1 || got[0].Message != want || got[0].Reason != string(phase)) {
			t.Errorf("%s: %v", phase, got)
		}
	}
}
