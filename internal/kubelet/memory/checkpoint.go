package memory

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/utils/dump"

	"skiff/internal/atomicfile"
	"skiff/internal/kubelet/checksum"
)

// checkpointName is upstream's name of the file in the kubelet's directory.
const checkpointName = "memory_manager_state"

// stored is the stored state.
type stored struct {
	PolicyName   string      `json:"policyName"`
	MachineState hostState   `json:"machineState"`
	Entries      assignments `json:"entries,omitempty"`
}

// checkpoint is the file, in the format of upstream's version 1.37. The fields besides Data are what older versions read.
type checkpoint struct {
	stored
	Checksum uint64 `json:"checksum"`
	// Data has stored.
	checksum.Data
}

// upstreamTypes replaces the names of types and fields in the text of a value by upstream's.
var upstreamTypes = strings.NewReplacer(
	"memory.hostState", "state.NUMANodeMap", "memory.nodeState", "state.NUMANodeState", "memory.memoryTable", "state.MemoryTable",
	"memory.assignments", "state.ContainerMemoryAssignments", "memory.Block", "state.Block",
	"{Total:(uint64)", "{TotalMemSize:(uint64)", "{NUMANodes:([]int)", "{NUMAAffinity:([]int)",
)

// oldChecksum is the checksum of the fields that older versions read: of the text of upstream's Go value.
func (s stored) oldChecksum() uint64 {
	if s.Entries == nil {
		s.Entries = assignments{}
	}
	if s.MachineState == nil {
		s.MachineState = hostState{}
	}
	return checksum.OfText("(*state.MemoryManagerCheckpoint){PolicyName:" + dump.ForHash(s.PolicyName) +
		" MachineState:" + upstreamTypes.Replace(dump.ForHash(s.MachineState)) + " Entries:" + upstreamTypes.Replace(dump.ForHash(s.Entries)) +
		" Checksum:(checksum.Checksum)0}")
}

// save writes the checkpoint. The caller holds mu, or is the constructor.
func (m *Memory) save() error {
	s := stored{PolicyName: m.Policy, MachineState: m.host, Entries: m.assigned}
	data, err := checksum.Encode(s)
	if err != nil {
		return err
	}
	text, err := json.Marshal(checkpoint{stored: s, Checksum: s.oldChecksum(), Data: data})
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(m.Dir, checkpointName), text, 0o600)
}

// load reads the checkpoint, if there is one.
func (m *Memory) load() error {
	path := filepath.Join(m.Dir, checkpointName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var s stored
	if err == nil {
		s, err = decode(text)
	}
	if err == nil && s.PolicyName != m.Policy {
		err = fmt.Errorf("[memorymanager] configured policy %q differs from state checkpoint policy %q", m.Policy, s.PolicyName)
	}
	if err != nil {
		return fmt.Errorf("could not restore state from checkpoint: %w, please drain this node and delete the memory manager checkpoint file %q before restarting Kubelet", err, path)
	}
	if s.MachineState != nil {
		m.host = s.MachineState
	}
	if s.Entries != nil {
		m.assigned = s.Entries
	}
	return nil
}

// decode reads a checkpoint of this or an older version, and verifies its checksum.
func decode(text []byte) (stored, error) {
	var file checkpoint
	if err := json.Unmarshal(text, &file); err != nil {
		return stored{}, fmt.Errorf("failed to deserialize memory manager checkpoint: %w", err)
	}
	s := file.stored
	if file.IsAbsent() {
		if file.Checksum != 0 && file.Checksum != s.oldChecksum() {
			return s, checksum.ErrCorrupt
		}
		return s, s.check()
	}
	s = stored{}
	if err := file.Decode(&s, "memory manager checkpoint"); err != nil {
		return s, fmt.Errorf("could not load v3 checkpoint: %w", err)
	}
	return s, s.check()
}

// check returns an error if a NUMA node has no state.
func (s stored) check() error {
	for id, node := range s.MachineState {
		if node == nil {
			return fmt.Errorf("NUMA node %d has no state", id)
		}
		for name, table := range node.MemoryMap {
			if table == nil {
				return fmt.Errorf("NUMA node %d has no state of %s", id, name)
			}
		}
	}
	return nil
}
