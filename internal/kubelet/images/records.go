package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/distribution/reference"

	"skiff/internal/atomicfile"
	"skiff/internal/kubelet/images/credentials"
)

// Verify is the policy for which images on the node a pod must have credentials. The zero value is the default policy.
type Verify struct {
	Policy string
	// Allowed are repositories, or prefixes that end with /*, that need no credentials with VerifyNotAllowed.
	Allowed []string
}

// The policies, as named in a KubeletConfiguration.
const (
	// VerifyPulled is the default: only images pulled by this kubelet are verified, not preloaded ones.
	VerifyPulled     = "NeverVerifyPreloadedImages"
	VerifyNone       = "NeverVerify"
	VerifyNotAllowed = "NeverVerifyAllowlistedImages"
	VerifyAll        = "AlwaysVerify"
)

// Validate returns an error if the policy is invalid.
func (v Verify) Validate() error {
	if !slices.Contains([]string{"", VerifyPulled, VerifyNone, VerifyNotAllowed, VerifyAll}, v.Policy) {
		return fmt.Errorf("unknown image pull credential verification policy: %v", v.Policy)
	}
	if len(v.Allowed) > 0 && v.Policy != VerifyNotAllowed {
		return fmt.Errorf("preloadedImagesVerificationAllowlist needs imagePullCredentialsVerificationPolicy %s", VerifyNotAllowed)
	}
	for _, pattern := range v.Allowed {
		path, wild := strings.CutSuffix(pattern, "/*")
		if strings.Contains(path, "*") || path == "" || !wild && repositoryOf(path) != path {
			return fmt.Errorf("%q is neither a repository nor a path with /* at the end", pattern)
		}
	}
	return nil
}

// needed reports whether a pod must have credentials for an image; pulled reports whether this kubelet has pulled it.
func (v Verify) needed(image string, pulled bool) bool {
	switch v.Policy {
	case VerifyNone:
		return false
	case VerifyAll:
		return true
	case VerifyNotAllowed:
		repository := repositoryOf(image)
		return !slices.ContainsFunc(v.Allowed, func(pattern string) bool {
			path, wild := strings.CutSuffix(pattern, "*")
			return repository == pattern || wild && strings.HasPrefix(repository, path)
		})
	}
	return pulled
}

// recordedMax bounds how many secrets are recorded for one image in addition to those it was pulled with.
const recordedMax = 100

// holder identifies a credential that pulled an image, by its source and hash.
type holder struct {
	credentials.Source
	Hash string `json:"hash,omitempty"`
}

// access is which credentials give access to an image that was pulled from a repository.
type access struct {
	// Everyone is set if the image was pulled without credentials, or with the node's.
	Everyone bool     `json:"everyone,omitempty"`
	Holders  []holder `json:"holders,omitempty"`
}

// records has the credentials that images were pulled with, in a file that is written before and after each pull.
type records struct {
	path string

	mu   sync.Mutex
	data struct {
		// Pulling is the number of pulls in progress by image; zero for one whose pull was in progress when an earlier kubelet ended, so that its result is
		// unknown.
		Pulling map[string]int `json:"pulling,omitempty"`
		// Pulled has the access to images by ID and repository.
		Pulled map[string]map[string]access `json:"pulled,omitempty"`
		// Lost is set if earlier records were damaged: an image without a record may have been pulled with credentials.
		Lost bool `json:"lost,omitempty"`
	}
	// unfinished are images whose pull was in progress when an earlier kubelet ended.
	unfinished map[string]bool
}

// loadRecords reads the file, if it exists. With an empty path the records are kept in memory only. If the file is damaged, every image on the node needs
// credentials until it was pulled again, as upstream; the error says why.
func loadRecords(path string) (r *records, damage error) {
	r = &records{path: path, unfinished: map[string]bool{}}
	if path != "" {
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, &r.data)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			r = &records{path: path, unfinished: map[string]bool{}}
			r.data.Lost = true
			damage = fmt.Errorf("read records of pulled images from %s: %w", path, err)
		}
	}
	for image := range r.data.Pulling {
		r.data.Pulling[image], r.unfinished[image] = 0, true
	}
	if r.data.Pulling == nil {
		r.data.Pulling = map[string]int{}
	}
	if r.data.Pulled == nil {
		r.data.Pulled = map[string]map[string]access{}
	}
	return r, damage
}

// save writes the file. The caller holds mu.
func (r *records) save() error {
	if r.path == "" {
		return nil
	}
	data, err := json.Marshal(r.data)
	if err != nil {
		return err
	}
	return atomicfile.Write(r.path, data, 0o600)
}

// begin records that an image is about to be pulled, so that it is not taken for a preloaded one if this process dies.
func (r *records) begin(image string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.data.Pulling[image]++
	return r.save()
}

// end records the result of a pull: ref is empty if it failed, used nil if it needed no credential.
func (r *records) end(image, ref string, used *credentials.Credential) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.data.Pulling[image]--; r.data.Pulling[image] <= 0 && !(r.unfinished[image] && ref == "") {
		delete(r.data.Pulling, image)
		delete(r.unfinished, image)
	}
	if ref != "" {
		r.grant(image, ref, used)
	}
	return r.save()
}

// grant records that a credential gives access to an image. The caller holds mu.
func (r *records) grant(image, ref string, used *credentials.Credential) {
	repository := repositoryOf(image)
	if r.data.Pulled[ref] == nil {
		r.data.Pulled[ref] = map[string]access{}
	}
	a := r.data.Pulled[ref][repository]
	if used == nil || used.Source.Kind == "" {
		// Everyone has access, so single holders need not be recorded.
		r.data.Pulled[ref][repository] = access{Everyone: true}
		return
	}
	h := holder{Source: used.Source}
	if used.Source.Kind == credentials.KindSecret {
		h.Hash = used.Hash()
	}
	if a.Everyone || slices.Contains(a.Holders, h) {
		return
	}
	// A changed secret replaces its old record.
	a.Holders = slices.DeleteFunc(slices.Clone(a.Holders), func(old holder) bool { return old.Source == h.Source })
	a.Holders = append(a.Holders, h)
	r.data.Pulled[ref][repository] = a
}

// allow reports whether a pod with the given credentials may use an image that is on the node.
func (r *records) allow(image, ref string, verify Verify, have func() ([]credentials.Credential, error)) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	byRepository, pulled := r.data.Pulled[ref]
	_, pulling := r.data.Pulling[image]
	if !verify.needed(image, pulled || pulling || r.data.Lost) {
		return true, nil
	}
	a := byRepository[repositoryOf(image)]
	if a.Everyone || len(a.Holders) == 0 {
		return a.Everyone, nil
	}
	// Credential plugins can be slow, so they are called without the lock.
	r.mu.Unlock()
	found, err := have()
	r.mu.Lock()
	if err != nil {
		return false, err
	}
	for _, c := range found {
		if !a.admits(c) {
			continue
		}
		// The same credential in another secret, or a new one in the same secret, is recorded too.
		if c.Source.Kind == credentials.KindSecret && len(a.Holders) < recordedMax {
			r.grant(image, ref, &c)
			return true, r.save()
		}
		return true, nil
	}
	return false, nil
}

// admits reports whether a credential gives access: the same secret, the same content, or the same service account.
func (a access) admits(c credentials.Credential) bool {
	return slices.ContainsFunc(a.Holders, func(h holder) bool {
		return h.Source == c.Source && c.Source.Kind != "" || h.Kind == credentials.KindSecret && c.Source.Kind == credentials.KindSecret && h.Hash == c.Hash()
	})
}

// forget drops the records of images that are not present.
func (r *records) forget(present func(ref string) bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := false
	for ref := range r.data.Pulled {
		if !present(ref) {
			delete(r.data.Pulled, ref)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return r.save()
}

// repositoryOf is the name of an image in a pod's spec without tag and digest.
func repositoryOf(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image
	}
	if digested, ok := named.(reference.Digested); ok {
		image = strings.TrimSuffix(image, "@"+digested.Digest().String())
	}
	if tagged, ok := named.(reference.Tagged); ok {
		image = strings.TrimSuffix(image, ":"+tagged.Tag())
	}
	return image
}
