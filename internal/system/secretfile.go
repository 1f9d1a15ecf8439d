package system

import (
	"fmt"
	"log/slog"
	"os"
)

// warnOfExposedSecret warns of a file with a secret that other users can read or write; path is empty if the flag is not set. The file is used nevertheless: what Kubernetes mounts of a Secret
// has mode 0644, and clients of Kubernetes treat kubeconfigs like that. A node that is installed must not fail at its next start for it.
func warnOfExposedSecret(log *slog.Logger, flag, path string) {
	if path == "" {
		return
	}
	info, err := os.Stat(path)
	if err != nil {
		return // whoever reads the file finds out
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		log.Warn("other users may read or write a file with a secret: chmod 600 it", "flag", "--"+flag, "file", path, "mode", fmt.Sprintf("%04o", mode))
	}
}
