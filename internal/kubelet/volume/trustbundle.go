package volume

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

// trustAnchors returns the trust anchors a projection selects: of one bundle by name, or of all of a signer that match a
// label selector.
func (v *Volumes) trustAnchors(source *corev1.ClusterTrustBundleProjection) ([]byte, error) {
	bundles, err := v.Objects.TrustBundles()
	if err != nil {
		return nil, err
	}
	switch {
	case source.Name != nil:
		i := slices.IndexFunc(bundles, func(b *certificatesv1.ClusterTrustBundle) bool { return b.Name == *source.Name })
		if i < 0 && ptr.Deref(source.Optional, false) {
			return []byte{}, nil
		}
		if i < 0 {
			return nil, fmt.Errorf("while getting ClusterTrustBundle: %w",
				apierrors.NewNotFound(certificatesv1.Resource("clustertrustbundle"), *source.Name))
		}
		return normalize(bundles[i : i+1])
	case source.SignerName != nil:
		// A nil selector matches nothing, an empty one everything.
		selector, err := metav1.LabelSelectorAsSelector(source.LabelSelector)
		if err != nil {
			return nil, fmt.Errorf("while parsing label selector: %w", err)
		}
		var selected []*certificatesv1.ClusterTrustBundle
		for _, bundle := range bundles {
			if bundle.Spec.SignerName == *source.SignerName && selector.Matches(labels.Set(bundle.Labels)) {
				selected = append(selected, bundle)
			}
		}
		if len(selected) == 0 && !ptr.Deref(source.Optional, false) {
			return nil, errors.New("combination of signerName and labelSelector matched zero ClusterTrustBundles")
		}
		return normalize(selected)
	}
	return nil, errors.New("ClusterTrustBundle projection requires either name or signerName to be set")
}

// normalize writes each certificate once, without comments, in an order that depends only on the certificates.
func normalize(bundles []*certificatesv1.ClusterTrustBundle) ([]byte, error) {
	anchors := map[string]bool{}
	for _, bundle := range bundles {
		for block, rest := pem.Decode([]byte(bundle.Spec.TrustBundle)); block != nil; block, rest = pem.Decode(rest) {
			anchors[string(block.Bytes)] = true
		}
	}
	text := bytes.NewBuffer([]byte{})
	for _, anchor := range slices.Sorted(maps.Keys(anchors)) {
		if err := pem.Encode(text, &pem.Block{Type: "CERTIFICATE", Bytes: []byte(anchor)}); err != nil {
			return nil, fmt.Errorf("while normalizing trust anchors: %w", err)
		}
	}
	return text.Bytes(), nil
}
