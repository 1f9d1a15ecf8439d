package system

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"skiff/internal/atomicfile"
	"skiff/internal/config"
)

// kubeconfigEntry is a cluster as a kubeconfig with others has it: the names of its cluster, its user and its context are the same.
type kubeconfigEntry struct {
	name string
	// server is the URL of the API, ca has the CAs of its certificate.
	server string
	ca     []byte
	// cert and key are those of the user.
	cert, key []byte
	// setCurrent makes the context the current one. It is made so anyway if there is none.
	setCurrent bool
}

// mergeKubeconfig merges the admin kubeconfig of a server into the one that is configured.
func mergeKubeconfig(c config.MergeKubeconfig, admin *clientcmdapi.Config) error {
	path, err := expandHome(c.Path)
	if err != nil {
		return err
	}
	current := admin.Contexts[admin.CurrentContext]
	cluster, user := admin.Clusters[current.Cluster], admin.AuthInfos[current.AuthInfo]
	return kubeconfigEntry{
		name: c.Context, server: cluster.Server, ca: cluster.CertificateAuthorityData, cert: user.ClientCertificateData, key: user.ClientKeyData, setCurrent: c.SetCurrent,
	}.mergeInto(path)
}

// expandHome replaces ~ at the beginning of a path. A service has no shell that would do it.
func expandHome(path string) (string, error) {
	rest, ok := strings.CutPrefix(path, "~/")
	if !ok {
		return path, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		who, err := user.Current()
		if err != nil {
			return "", fmt.Errorf("find the home directory: %w", err)
		}
		home = who.HomeDir
	}
	return filepath.Join(home, rest), nil
}

// kubectlFor is the command of kubectl for a merged context. kubectl finds the file in the home directory by itself.
func kubectlFor(c config.MergeKubeconfig) string {
	command := "kubectl"
	path, err := expandHome(c.Path)
	found, foundErr := expandHome("~/.kube/config")
	if err == nil && foundErr == nil && path != found {
		command += " --kubeconfig " + path
	}
	return command + " --context " + c.Context
}

// mergeInto adds the entry to the kubeconfig at a path, or replaces the one of its name. Everything else in the file stays, also what is not known here.
func (e kubeconfigEntry) mergeInto(path string) error { return rewriteKubeconfig(path, e.merge) }

// unmergeKubeconfig removes what a server has merged into a kubeconfig. An entry of the name that is another cluster's stays.
func unmergeKubeconfig(c config.MergeKubeconfig, dataDir string) error {
	path, err := expandHome(c.Path)
	if err != nil {
		return err
	}
	admin, err := clientcmd.LoadFromFile(filepath.Join(dataDir, adminKubeconfig))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the server has never started
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	cluster := admin.Clusters[admin.Contexts[admin.CurrentContext].Cluster]
	entry := kubeconfigEntry{name: c.Context, server: cluster.Server, ca: cluster.CertificateAuthorityData}
	return rewriteKubeconfig(path, entry.unmerge)
}

// rewriteKubeconfig changes the kubeconfig at a path. The file is replaced atomically and belongs to the same user as before; a new one to the user of
// its directory.
func rewriteKubeconfig(path string, change func([]byte) ([]byte, error)) error {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved // the link stays
	}
	dir := filepath.Dir(path)
	owner, err := ownerOf(dir)
	if err != nil {
		return err
	}
	if err := makeDir(dir, owner); err != nil {
		return err
	}
	unlock, err := lockKubeconfig(path)
	if err != nil {
		return err
	}
	defer unlock()
	before, err := os.ReadFile(path)
	if err == nil {
		owner, err = ownerOf(path)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	after, err := change(before)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if os.Geteuid() != 0 {
		return atomicfile.Write(path, after, 0o600)
	}
	return atomicfile.WriteOwned(path, after, 0o600, owner)
}

// ownerOf is the owner of a file, or of the closest directory above it that exists.
func ownerOf(path string) (atomicfile.Owner, error) {
	for {
		var stat unix.Stat_t
		err := unix.Stat(path, &stat)
		if err == nil {
			return atomicfile.Owner{UID: int(stat.Uid), GID: int(stat.Gid)}, nil
		}
		parent := filepath.Dir(path)
		if !errors.Is(err, unix.ENOENT) || parent == path {
			return atomicfile.Owner{}, &fs.PathError{Op: "stat", Path: path, Err: err}
		}
		path = parent
	}
}

// makeDir creates a directory for an owner, if it does not exist.
func makeDir(dir string, owner atomicfile.Owner) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeDir(filepath.Dir(dir), owner); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil // only root can give directories to others
	}
	return os.Lchown(dir, owner.UID, owner.GID)
}

// lockKubeconfig keeps kubectl from writing a kubeconfig at the same time, by the file that kubectl itself uses for that.
func lockKubeconfig(path string) (unlock func(), err error) {
	lock := path + ".lock"
	file, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s is being written by kubectl; if it is not, remove %s", path, lock)
	}
	if err != nil {
		return nil, err
	}
	file.Close()
	return func() { os.Remove(lock) }, nil
}

// merge returns a kubeconfig with the entry.
func (e kubeconfigEntry) merge(kubeconfig []byte) ([]byte, error) {
	root, err := parseKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	cluster := namedEntry(root, "clusters", e.name, "cluster")
	if err := e.checkCluster(cluster); err != nil {
		return nil, err
	}
	setText(cluster, "server", e.server)
	setText(cluster, "certificate-authority-data", base64.StdEncoding.EncodeToString(e.ca))
	removeKeys(cluster, "certificate-authority", "insecure-skip-tls-verify")
	user := namedEntry(root, "users", e.name, "user")
	user.Content = nil // other credentials would be used instead
	setText(user, "client-certificate-data", base64.StdEncoding.EncodeToString(e.cert))
	setText(user, "client-key-data", base64.StdEncoding.EncodeToString(e.key))
	context := namedEntry(root, "contexts", e.name, "context")
	setText(context, "cluster", e.name)
	setText(context, "user", e.name)
	if current := child(root, "current-context"); e.setCurrent || current == nil || current.Value == "" {
		setText(root, "current-context", e.name)
	}
	return encodeKubeconfig(root)
}

// unmerge returns a kubeconfig without the entry, if that is of the same cluster.
func (e kubeconfigEntry) unmerge(kubeconfig []byte) ([]byte, error) {
	root, err := parseKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	if textOf(namedEntry(root, "clusters", e.name, "cluster"), "certificate-authority-data") != base64.StdEncoding.EncodeToString(e.ca) {
		return kubeconfig, nil
	}
	for _, list := range []string{"clusters", "users", "contexts"} {
		if entries := child(root, list); entries != nil {
			entries.Content = slices.DeleteFunc(entries.Content, func(entry *yaml.Node) bool { return textOf(entry, "name") == e.name })
		}
	}
	if textOf(root, "current-context") == e.name {
		setText(root, "current-context", "")
	}
	return encodeKubeconfig(root)
}

func encodeKubeconfig(root *yaml.Node) ([]byte, error) {
	var encoded bytes.Buffer
	encoder := yaml.NewEncoder(&encoded)
	encoder.SetIndent(2)
	if err := errors.Join(encoder.Encode(root), encoder.Close()); err != nil {
		return nil, err
	}
	return encoded.Bytes(), nil
}

// checkCluster refuses to replace another cluster that happens to have the name.
func (e kubeconfigEntry) checkCluster(cluster *yaml.Node) error {
	server, ca := textOf(cluster, "server"), textOf(cluster, "certificate-authority-data")
	if len(cluster.Content) == 0 || server == e.server || ca == base64.StdEncoding.EncodeToString(e.ca) {
		return nil
	}
	return fmt.Errorf("it has another cluster with the name %s, %s: choose another --merge-kubeconfig-context", e.name, cmp.Or(server, "without a server"))
}

// parseKubeconfig parses a kubeconfig, which may be empty, and returns its mapping.
func parseKubeconfig(data []byte) (*yaml.Node, error) {
	if _, err := clientcmd.Load(data); err != nil {
		return nil, fmt.Errorf("it is not a kubeconfig: %w", err)
	}
	var document, further yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("it is not a kubeconfig: %w", err)
	}
	// What would be lost when it is written again.
	if err := decoder.Decode(&further); !errors.Is(err, io.EOF) {
		return nil, errors.New("it has several YAML documents, of which kubectl reads the first: remove the others")
	}
	if alias := findAlias(&document); alias != nil {
		return nil, fmt.Errorf("line %d: it has a YAML alias, *%s, which cannot be kept: write the value instead", alias.Line, alias.Value)
	}
	root := &yaml.Node{Kind: yaml.MappingNode}
	if len(document.Content) > 0 && document.Content[0].ShortTag() != "!!null" {
		root = document.Content[0]
	}
	if root.Kind != yaml.MappingNode {
		return nil, errors.New("it is not a kubeconfig: it has no fields")
	}
	for _, field := range []struct{ key, value string }{{"apiVersion", "v1"}, {"kind", "Config"}} {
		if textOf(root, field.key) == "" {
			setText(root, field.key, field.value)
		}
	}
	return root, nil
}

// findAlias finds an alias in a document.
func findAlias(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node
	}
	for _, child := range node.Content {
		if alias := findAlias(child); alias != nil {
			return alias
		}
	}
	return nil
}

// child is the value of a key of a mapping, or nil.
func child(mapping *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return mapping.Content[i+1]
		}
	}
	return nil
}

func textOf(mapping *yaml.Node, key string) string {
	if value := child(mapping, key); value != nil {
		return value.Value
	}
	return ""
}

func textNode(value string) *yaml.Node {
	node := &yaml.Node{}
	node.SetString(value)
	return node
}

// setText sets a key of a mapping.
func setText(mapping *yaml.Node, key, value string) {
	if existing := child(mapping, key); existing != nil {
		*existing = *textNode(value)
		return
	}
	mapping.Content = append(mapping.Content, textNode(key), textNode(value))
}

func removeKeys(mapping *yaml.Node, keys ...string) {
	for i := len(mapping.Content) - 2; i >= 0; i -= 2 {
		if slices.Contains(keys, mapping.Content[i].Value) {
			mapping.Content = slices.Delete(mapping.Content, i, i+2)
		}
	}
}

// namedEntry is the mapping with a key, such as cluster, of the entry with a name in a list, such as clusters. What does not exist is added.
func namedEntry(root *yaml.Node, list, name, key string) *yaml.Node {
	entries := child(root, list)
	if entries == nil {
		entries = &yaml.Node{}
		root.Content = append(root.Content, textNode(list), entries)
	}
	if entries.Kind != yaml.SequenceNode { // null
		*entries = yaml.Node{Kind: yaml.SequenceNode}
	}
	i := slices.IndexFunc(entries.Content, func(entry *yaml.Node) bool { return textOf(entry, "name") == name })
	if i < 0 {
		entry := &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{textNode("name"), textNode(name)}}
		entries.Content = append(entries.Content, entry)
		i = len(entries.Content) - 1
	}
	entry := entries.Content[i]
	value := child(entry, key)
	if value == nil {
		value = &yaml.Node{}
		entry.Content = append(entry.Content, textNode(key), value)
	}
	if value.Kind != yaml.MappingNode {
		*value = yaml.Node{Kind: yaml.MappingNode}
	}
	return value
}
