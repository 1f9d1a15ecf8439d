package node

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/kubelet/cri"
)

// TestSandboxesAreConfined: whatever a pod's spec says, its sandbox runs pause under the profile for it, and exits on
// SIGTERM.
func TestSandboxesAreConfined(t *testing.T) {
	c := start(t, shortDir(t))
	host := cri.DetectHost("")
	host.SandboxSeccomp = c.SandboxProfile()
	for what, change := range map[string]func(*corev1.PodSpec){
		"plain":            func(*corev1.PodSpec) {},
		"shared processes": func(s *corev1.PodSpec) { s.ShareProcessNamespace = new(true) },
		"another user": func(s *corev1.PodSpec) {
			s.SecurityContext.RunAsUser, s.SecurityContext.RunAsGroup = new(int64(1000)), new(int64(2000))
		},
		"more groups": func(s *corev1.PodSpec) { s.SecurityContext.SupplementalGroups = []int64{3000, 4000} },
		"sysctls": func(s *corev1.PodSpec) {
			s.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "kernel.shm_rmid_forced", Value: "1"}}
		},
		"the host's spaces": func(s *corev1.PodSpec) { s.HostPID, s.HostIPC = true, true },
	} {
		t.Run(what, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", UID: types.UID(strings.ReplaceAll(what, " ", "-"))}}
			pod.Spec = corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "c"}}, SecurityContext: &corev1.PodSecurityContext{}}
			change(&pod.Spec)
			config, err := cri.NewSandboxConfig(pod, cri.PodSettings{Host: host})
			if err != nil {
				t.Fatal(err)
			}
			id, err := cri.New(c.client).RunPodSandbox(t.Context(), config, "")
			if err != nil {
				t.Fatal(err)
			}
			_, text := running(t, c.client, id)
			var info struct{ Pid int }
			if err := json.Unmarshal([]byte(text), &info); err != nil {
				t.Fatal(err)
			}
			var status []byte
			eventually(t, "the sandbox's process is pause", func() bool { // runc has only signalled it to start
				status, err = os.ReadFile(fmt.Sprintf("/proc/%d/status", info.Pid))
				return err == nil && strings.HasPrefix(string(status), "Name:\tpause\n")
			})
			if !strings.Contains(string(status), "\nSeccomp:\t2\n") || !strings.Contains(string(status), "\nSeccomp_filters:\t1\n") {
				t.Errorf("the sandbox's process:\n%s", status)
			}
			began := time.Now()
			remove(t, c.client, id)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %v to end", took)
			}
		})
	}
}
