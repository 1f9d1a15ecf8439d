// Package networkmanager tells NetworkManager to leave skiff's links alone. Otherwise it may configure them by DHCP, or remove their addresses and
// routes, when it starts or when a link appears.
package networkmanager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/godbus/dbus/v5"

	"skiff/internal/atomicfile"
)

// RunDir is the directory of NetworkManager's state. It exists where NetworkManager has run since the host has started.
const RunDir = "/run/NetworkManager"

const (
	fileName = "conf.d/90-skiff.conf"
	// content names skiff's bridge and tunnels, and the links of pods.
	content = "# written by skiff\n[keyfile]\nunmanaged-devices+=interface-name:skiff*;interface-name:veth????????\n"
	// reloadTimeout bounds the call of NetworkManager.
	reloadTimeout = 5 * time.Second
)

// Settings say where NetworkManager is.
type Settings struct {
	// RunDir is that of NetworkManager.
	RunDir string
	// Reload makes NetworkManager read its configuration.
	Reload func() error
}

// Default are the settings of this host.
func Default() Settings { return Settings{RunDir: RunDir, Reload: reload} }

// Configure writes the configuration, if the host has NetworkManager. The file does not outlive a restart of the host.
func (s Settings) Configure() error {
	if _, err := os.Stat(s.RunDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	path := filepath.Join(s.RunDir, fileName)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, []byte(content)) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("configure NetworkManager: %w", err)
	}
	if err := atomicfile.Write(path, []byte(content), 0o644); err != nil {
		return fmt.Errorf("configure NetworkManager: %w", err)
	}
	if err := s.Reload(); err != nil {
		return fmt.Errorf("reload NetworkManager: %w", err)
	}
	return nil
}

// Unconfigure removes the configuration.
func (s Settings) Unconfigure() error {
	err := os.Remove(filepath.Join(s.RunDir, fileName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = s.Reload()
	}
	if err != nil {
		return fmt.Errorf("remove the configuration of NetworkManager: %w", err)
	}
	return nil
}

// reload calls NetworkManager over the system bus. If it does not run, it reads the file when it starts.
func reload() error {
	ctx, cancel := context.WithTimeout(context.Background(), reloadTimeout)
	defer cancel()
	connection, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return nil //nolint:nilerr // without a bus there is no NetworkManager
	}
	defer connection.Close()
	const (
		name = "org.freedesktop.NetworkManager"
		path = "/org/freedesktop/NetworkManager"
		// readConfiguration is the flag for the configuration files alone.
		readConfiguration = uint32(1)
	)
	err = connection.Object(name, path).CallWithContext(ctx, name+".Reload", dbus.FlagNoAutoStart, readConfiguration).Err
	var failed dbus.Error
	isAbsent := []string{"org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner"}
	if errors.As(err, &failed) && slices.Contains(isAbsent, failed.Name) {
		return nil
	}
	return err
}
