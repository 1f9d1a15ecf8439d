package cluster

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The environment variables by which the processes of pods are recognized.
const (
	podNameVariable = "SKIFF_TEST_POD"
	podUIDVariable  = "SKIFF_TEST_UID"
)

// IdentityEnv are the variables of the containers that Identities observes.
func IdentityEnv() []corev1.EnvVar {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	return []corev1.EnvVar{field(podNameVariable, "metadata.name"), field(podUIDVariable, "metadata.uid")}
}

// PodProcess is a process of a pod whose containers have IdentityEnv.
type PodProcess struct{ Name, UID, Dir string }

// PodProcesses returns the processes of such pods on all hosts of a test.
func PodProcesses() (found []PodProcess) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		if p := podProcess(dir); p.Name != "" {
			found = append(found, p)
		}
	}
	return found
}

// podProcess returns the pod of a process; name and UID are empty if it has none, or has ended.
func podProcess(dir string) PodProcess {
	p := PodProcess{Dir: dir}
	environment, err := os.ReadFile(filepath.Join(dir, "environ"))
	if err != nil {
		return p
	}
	for variable := range bytes.SplitSeq(environment, []byte{0}) {
		if value, ok := strings.CutPrefix(string(variable), podNameVariable+"="); ok {
			p.Name = value
		}
		if value, ok := strings.CutPrefix(string(variable), podUIDVariable+"="); ok {
			p.UID = value
		}
	}
	return p
}

// Identities observes the processes of pods on all hosts of a test, and finds pods with the same name that run at the same time.
type Identities struct {
	stop chan struct{}
	done sync.WaitGroup

	mu sync.Mutex
	// twice are names that ran twice at the same time, started the UIDs of pods that ran, by name.
	twice   []string
	started map[string]map[string]bool
}

// ObserveIdentities observes until Stop.
func ObserveIdentities() *Identities {
	i := &Identities{stop: make(chan struct{}), started: map[string]map[string]bool{}}
	i.done.Go(func() {
		for {
			i.scan()
			select {
			case <-i.stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	return i
}

// Stop ends the observation.
func (i *Identities) Stop() {
	close(i.stop)
	i.done.Wait()
}

func (i *Identities) scan() {
	seen := map[string][]PodProcess{}
	for _, p := range PodProcesses() {
		i.mu.Lock()
		if i.started[p.Name] == nil {
			i.started[p.Name] = map[string]bool{}
		}
		i.started[p.Name][p.UID] = true
		i.mu.Unlock()
		for _, other := range seen[p.Name] {
			// The first process may have ended before the second one has started.
			if other.UID != p.UID && podProcess(other.Dir).UID == other.UID {
				i.mu.Lock()
				i.twice = append(i.twice, fmt.Sprintf("%s: pods %s and %s", p.Name, other.UID, p.UID))
				i.mu.Unlock()
			}
		}
		seen[p.Name] = append(seen[p.Name], p)
	}
}

// Twice returns which pods with the same name have run at the same time.
func (i *Identities) Twice() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.twice)
}

// Started returns the UIDs of the pods that have run since the start or the last Forget, by name.
func (i *Identities) Started() map[string][]string {
	i.mu.Lock()
	defer i.mu.Unlock()
	started := map[string][]string{}
	for name, uids := range i.started {
		started[name] = slices.Sorted(maps.Keys(uids))
	}
	return started
}

// Forget forgets which pods have run.
func (i *Identities) Forget() {
	i.mu.Lock()
	defer i.mu.Unlock()
	clear(i.started)
}
