package overlay

import (
	"fmt"
	"log/slog"
)

// Kernel is what a Writer writes to.
type Kernel interface {
	// Read returns the state that the kernel has. Of a link with the name of the wanted one it also reads what is on it.
	Read(desired State) (State, error)
	// Apply makes changes. After an error, some of them may have been made.
	Apply(c Changes) error
}

// Writer makes the kernel's state equal to a desired one. It is not safe for concurrent use.
type Writer struct {
	kernel Kernel
	log    *slog.Logger
	// applied is what the kernel has, if it is known.
	applied State
	inSync  bool
}

// NewWriter returns a writer. Its first Apply reads the kernel's state.
func NewWriter(kernel Kernel, log *slog.Logger) *Writer { return &Writer{kernel: kernel, log: log} }

// Forget makes the next Apply read the kernel's state.
func (w *Writer) Forget() { w.inSync = false }

// Apply sends what differs from the state that was applied last, or from the kernel's if that is not known. It returns the number of changes. After
// an error the kernel's state is read, and what still differs is sent once more.
func (w *Writer) Apply(desired State) (int, error) {
	if w.inSync {
		c := Diff(w.applied, desired)
		if c.Size() == 0 {
			return 0, nil
		}
		err := w.kernel.Apply(c)
		if err == nil {
			w.applied = desired
			return c.Size(), nil
		}
		w.inSync = false
		w.log.Info("reading the routes between nodes from the kernel", "reason", err)
	}
	current, err := w.kernel.Read(desired)
	if err != nil {
		return 0, fmt.Errorf("read the routes between nodes: %w", err)
	}
	c := Diff(current, desired)
	if c.Size() > 0 {
		if err := w.kernel.Apply(c); err != nil {
			return 0, fmt.Errorf("change the routes between nodes: %w", err)
		}
	}
	w.applied, w.inSync = desired, true
	return c.Size(), nil
}
