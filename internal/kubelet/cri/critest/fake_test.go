package critest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"skiff/internal/kubelet/cri/critest"
)

// shell simulates the few commands that the suite runs.
func shell(ctx context.Context, _ string, command []string) (string, int32, error) {
	text := command[len(command)-1]
	var n int32
	switch {
	case text == "test -e /trapped":
		return "", 0, nil
	case strings.HasPrefix(text, "echo "):
		return text[len("echo "):] + "\n", 0, nil
	case scan(text, "exit %d", &n):
		return "", n, nil
	case scan(text, "sleep %d", &n):
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(n) * time.Second):
		}
		return "", 0, nil
	}
	return "", 127, nil
}

func scan(text, format string, n *int32) bool {
	count, err := fmt.Sscanf(text, format, n)
	return err == nil && count == 1
}

func TestFake(t *testing.T) {
	for _, events := range []bool{true, false} {
		t.Run(fmt.Sprintf("events=%v", events), func(t *testing.T) {
			fake := critest.NewFake("busybox")
			fake.Command, fake.Events = shell, events
			critest.Run(t, critest.Harness{Runtime: fake, Image: "busybox", Logs: t.TempDir()})
		})
	}
}
