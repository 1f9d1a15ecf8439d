package identity

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
)

const (
	// bootstrappersGroup is the group of everybody who authenticates with a bootstrap token.
	bootstrappersGroup = "system:bootstrappers"

	nodeRecordPrefix = "node-identity-"
	nodeRecordKey    = "keys"
	maxNameBytes     = 253
	// recordedKeys is how many keys of a node are recorded. A host that has not received the certificate of its newest key still has the key before.
	recordedKeys = 2
)

// nodeNames keeps the name of a node from being taken by another host. Everybody with a bootstrap token could otherwise request the certificate of any
// node, and read its secrets.
//
// The name belongs to the host with the key that it was first requested with. The hash of that key is recorded in a ConfigMap, and replaced when the
// node renews its certificate. A host that lost its certificate, or whose certificate expired, joins again with the same key. `skiff node
// remove` deletes the record.
type nodeNames struct {
	records client.Resource[*corev1.ConfigMap]
	nodes   client.Resource[*corev1.Node]
}

// NodeRecordName is the name of the ConfigMap in kube-system that records to which host the name of a node belongs.
func NodeRecordName(node string) string {
	if len(nodeRecordPrefix)+len(node) > maxNameBytes {
		sum := sha256.Sum256([]byte(node))
		node = hex.EncodeToString(sum[:])
	}
	return nodeRecordPrefix + node
}

// keyHash identifies the key of a request.
func keyHash(parsed *x509.CertificateRequest) string {
	sum := sha256.Sum256(parsed.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// bind records the key of a request for a node's client certificate. It returns why the request must be denied, if the name belongs to another host.
// Only bootstrap tokens are subject to that: who else may request certificates of any node is an administrator.
func (n *nodeNames) bind(ctx context.Context, request *certificatesv1.CertificateSigningRequest, parsed *x509.CertificateRequest) (objection string, err error) {
	node, key := strings.TrimPrefix(parsed.Subject.CommonName, nodeUserPrefix), keyHash(parsed)
	isSelf := request.Spec.Username == parsed.Subject.CommonName
	if !isSelf && !slices.Contains(request.Spec.Groups, bootstrappersGroup) {
		return "", nil
	}
	record, err := n.records.Get(ctx, metav1.NamespaceSystem, NodeRecordName(node))
	if apierrors.IsNotFound(err) {
		return n.create(ctx, node, key, isSelf)
	}
	if err != nil {
		return "", fmt.Errorf("get the record of node %s: %w", node, err)
	}
	known := strings.Fields(record.Data[nodeRecordKey])
	switch {
	case slices.Contains(known, key):
		return "", nil
	case !isSelf:
		return taken(node), nil
	}
	next := record.DeepCopy()
	known = append([]string{key}, known...)
	next.Data = map[string]string{nodeRecordKey: strings.Join(known[:min(len(known), recordedKeys)], "\n")}
	if _, err := n.records.Update(ctx, next, client.WriteOptions{}); err != nil {
		return "", fmt.Errorf("record the key of node %s: %w", node, err)
	}
	return "", nil
}

// create records the first key of a node. A node that exists without a record joined before there were records, or is run by the server itself.
func (n *nodeNames) create(ctx context.Context, node, key string, isSelf bool) (objection string, err error) {
	if !isSelf {
		_, err := n.nodes.Get(ctx, "", node)
		if err == nil {
			return taken(node), nil
		}
		if !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("get node %s: %w", node, err)
		}
	}
	record := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: NodeRecordName(node)}, Data: map[string]string{nodeRecordKey: key},
	}
	// Of two hosts that request the same name at the same time, one succeeds. The other is decided about again.
	if _, err := n.records.Create(ctx, record, client.WriteOptions{}); err != nil {
		return "", fmt.Errorf("record the key of node %s: %w", node, err)
	}
	return "", nil
}

func taken(node string) string {
	return fmt.Sprintf("the node name %s belongs to another host: choose another --node-name, or free the name with 'skiff node remove %s' on the server", node, node)
}
