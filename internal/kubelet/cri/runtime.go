// Package cri speaks with the container runtime: containerd, CRI-O or whatever else understands the Container Runtime
// Interface.
//
// Runtime is the interface itself, in the CRI's own types. Dial reaches a real runtime over a unix socket; Fake is one in
// memory for tests, and the suite in critest holds both to the same behaviour. ReadPod turns what a runtime reports into a
// Pod, which is what the rest of the kubelet decides by, and Watch tells whose pods have changed. SandboxConfig and
// ContainerConfig go the other way: from a pod's spec to what the runtime is asked to make.
package cri

import (
	"errors"
	"fmt"

	criapi "k8s.io/cri-api/pkg/apis"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// Runtime is a container runtime and its image store. All methods may be called concurrently. Errors are gRPC statuses;
// NotFound tells whether what was named does not exist.
type Runtime interface {
	criapi.RuntimeService
	criapi.ImageManagerService
}

// ErrTimedOut is what ExecSync returns for a command that took longer than it was given.
var ErrTimedOut = errors.New("command timed out")

// ExitError is what ExecSync returns for a command that ended with a code other than zero.
type ExitError struct {
	Command []string
	Code    int32
	Stderr  string
}

func (e *ExitError) Error() string {
	text := ""
	for i, word := range e.Command {
		if i > 0 {
			text += " "
		}
		text += word
	}
	return fmt.Sprintf("command '%s' exited with %d: %s", text, e.Code, e.Stderr)
}

// NotFound reports whether the runtime does not know what was named.
func NotFound(err error) bool { return err != nil && crierrors.IsNotFound(err) }
