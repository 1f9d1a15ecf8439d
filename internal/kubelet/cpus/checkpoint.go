package cpus

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/dump"

	"skiff/internal/atomicfile"
	"skiff/internal/kubelet/checksum"
)

// checkpointName is upstream's name of the file in the kubelet's directory.
const checkpointName = "cpu_manager_state"

// assignments are the stored state.
type assignments struct {
	PolicyName    string                       `json:"policyName"`
	DefaultCPUSet string                       `json:"defaultCpuSet"`
	Entries       map[string]map[string]string `json:"entries,omitempty"`
}

// checkpoint is the file, in the format of upstream's version 1.37. The fields besides Data are what older versions read.
type checkpoint struct {
	assignments
	Checksum uint64 `json:"checksum"`
	// Data has assignments.
	checksum.Data
}

// oldChecksum is the checksum of the fields that older versions read: of the text of upstream's Go value.
func (a assignments) oldChecksum() uint64 {
	if a.Entries == nil {
		a.Entries = map[string]map[string]string{}
	}
	return checksum.OfText("(*state.CPUManagerCheckpoint){PolicyName:" + dump.ForHash(a.PolicyName) + " DefaultCPUSet:" + dump.ForHash(a.DefaultCPUSet) +
		" Entries:" + dump.ForHash(a.Entries) + " Checksum:(checksum.Checksum)0}")
}

// save writes the checkpoint. The caller holds mu, or is the constructor.
func (c *CPUs) save() error {
	a := assignments{PolicyName: c.Policy, DefaultCPUSet: c.state.shared.String(), Entries: map[string]map[string]string{}}
	for uid, containers := range c.state.exclusive {
		a.Entries[string(uid)] = map[string]string{}
		for name, cpus := range containers {
			a.Entries[string(uid)][name] = cpus.String()
		}
	}
	data, err := checksum.Encode(a)
	if err != nil {
		return err
	}
	text, err := json.Marshal(checkpoint{assignments: a, Checksum: a.oldChecksum(), Data: data})
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(c.Dir, checkpointName), text, 0o600)
}

// load reads the checkpoint, if there is one.
func (c *CPUs) load() error {
	path := filepath.Join(c.Dir, checkpointName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = c.restore(text)
	}
	if err != nil {
		return fmt.Errorf("could not restore state from checkpoint: %w, please drain this node and delete the CPU manager checkpoint file %q before restarting Kubelet", err, path)
	}
	return nil
}

// decode reads a checkpoint of this or an older version, and verifies its checksum.
func decode(text []byte) (assignments, error) {
	var file checkpoint
	if err := json.Unmarshal(text, &file); err != nil {
		return assignments{}, fmt.Errorf("failed to deserialize cpu manager checkpoint: %w", err)
	}
	if file.IsAbsent() {
		if file.Checksum != 0 && file.Checksum != file.oldChecksum() {
			return assignments{}, checksum.ErrCorrupt
		}
		return file.assignments, nil
	}
	var a assignments
	if err := file.Decode(&a, "cpu manager checkpoint"); err != nil {
		return a, fmt.Errorf("could not load v4 checkpoint: %w", err)
	}
	return a, nil
}

// restore sets the state to that of a checkpoint.
func (c *CPUs) restore(text []byte) error {
	a, err := decode(text)
	if err != nil {
		return err
	}
	if a.PolicyName != c.Policy {
		return fmt.Errorf("configured policy %q differs from state checkpoint policy %q", c.Policy, a.PolicyName)
	}
	if c.state.shared, err = cpuset.Parse(a.DefaultCPUSet); err != nil {
		return fmt.Errorf("could not parse default CPU set %q: %w", a.DefaultCPUSet, err)
	}
	for uid, containers := range a.Entries {
		c.state.exclusive[types.UID(uid)] = map[string]cpuset.CPUSet{}
		for name, list := range containers {
			cpus, err := cpuset.Parse(list)
			if err != nil {
				return fmt.Errorf("could not parse cpuset %q for container %q in pod %q: %w", list, name, uid, err)
			}
			c.state.exclusive[types.UID(uid)][name] = cpus
		}
	}
	return nil
}
