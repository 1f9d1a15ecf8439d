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

// Verify says for which images on the node a pod must show that it could pull them. The zero value is the default policy.
type Verify struct {
	Policy string
	// Allowed are repositories, or with /* at the end all below a path, that need no credential under VerifyNotAllowed.
	Allowed []string
}

// The policies, by the names they have in a KubeletConfiguration.
const (
	// VerifyPulled is the default: images that this kubelet has pulled, not those that were brought in otherwise.
	VerifyPulled     = "NeverVerifyPreloadedImages"
	VerifyNone       = "NeverVerify"
	VerifyNotAllowed = "NeverVerifyAllowlistedImages"
	VerifyAll        = "AlwaysVerify"
)

// Validate says what is wrong with it.
func (v Verify) Validate() error {
	if !slices.Contains([]string{"", VerifyPulled, VerifyNone, VerifyNotAllowed, VerifyAll}, v.Policy) {
		return fmt.Errorf("unknown image pull credential verification policy: %v", v.Policy)
	}
	for _, pattern := range v.Allowed {
		path, wild := strings.CutSuffix(pattern, "/*")
		if strings.Contains(path, "*") || path == "" || !wild && repositoryOf(path) != path {
			return fmt.Errorf("%q is neither a repository nor a path with /* at the end", pattern)
		}
	}
	return nil
}

// needed reports whether a pod must show credentials for an image; pulled says that this kubelet has pulled it.
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

// recordedMax bounds how many secrets are remembered for one image when they only turned up.
const recordedMax = 100

// holder is someone who has pulled an image: the source of the credential, and the credential's hash.
type holder struct {
	credentials.Source
	Hash string `json:"hash,omitempty"`
}

// access says who may use an image that was pulled by one name.
type access struct {
	// Everyone: it was pulled without a credential, or with the node's.
	Everyone bool     `json:"everyone,omitempty"`
	Holders  []holder `json:"holders,omitempty"`
}

// records remember with whose credentials images were pulled, in a file that is written before and after each pull.
type records struct {
	path string

	mu   sync.Mutex
	data struct {
		// Pulling counts the pulls under way by image. What is left here when the kubelet starts ended in an unknown way.
		Pulling map[string]int `json:"pulling,omitempty"`
		// Pulled has, by image id and repository, who may use the image. An id without a repository was pulled by nobody knows whom.
		Pulled map[string]map[string]access `json:"pulled,omitempty"`
	}
	// unfinished are images whose pull an earlier kubelet did not see end.
	unfinished map[string]bool
}

// loadRecords reads the file, if there is one. With an empty path nothing is kept beyond this process.
func loadRecords(path string) (*records, error) {
	r := &records{path: path, unfinished: map[string]bool{}}
	if path != "" {
		data, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read records of pulled images: %w", err)
		}
		if err == nil {
			if err := json.Unmarshal(data, &r.data); err != nil {
				return nil, fmt.Errorf("read records of pulled images from %s: %w", path, err)
			}
		}
	}
	for image := range r.data.Pulling {
		r.unfinished[image] = true
	}
	if r.data.Pulling == nil {
		r.data.Pulling = map[string]int{}
	}
	if r.data.Pulled == nil {
		r.data.Pulled = map[string]map[string]access{}
	}
	return r, nil
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

// begin notes that an image is about to be pulled: should this process die, the image is not taken for one that was always there.
func (r *records) begin(image string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.data.Pulling[image]++
	return r.save()
}

// end notes how a pull went: ref is empty if it failed, used nil if it needed no credential.
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

// grant notes who may use an image. The caller holds mu.
func (r *records) grant(image, ref string, used *credentials.Credential) {
	repository := repositoryOf(image)
	if r.data.Pulled[ref] == nil {
		r.data.Pulled[ref] = map[string]access{}
	}
	a := r.data.Pulled[ref][repository]
	if used == nil || used.Source.Kind == "" {
		// Whoever may use it, may; the single holders matter no more.
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
	// A secret whose content has changed replaces itself.
	a.Holders = slices.DeleteFunc(slices.Clone(a.Holders), func(old holder) bool { return old.Source == h.Source })
	a.Holders = append(a.Holders, h)
	r.data.Pulled[ref][repository] = a
}

// allow reports whether a pod with the given credentials may use an image that is on the node.
func (r *records) allow(image, ref string, verify Verify, have func() ([]credentials.Credential, error)) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	byRepository, pulled := r.data.Pulled[ref]
	if !verify.needed(image, pulled || r.data.Pulling[image] > 0) {
		return true, nil
	}
	a := byRepository[repositoryOf(image)]
	if a.Everyone || len(a.Holders) == 0 {
		return a.Everyone, nil
	}
	// Asking plugins takes time, and others need not wait for it.
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
		// The same credential under another name, or a new one in the same secret: remember it too.
		if c.Source.Kind == credentials.KindSecret && len(a.Holders) < recordedMax {
			r.grant(image, ref, &c)
			return true, r.save()
		}
		return true, nil
	}
	return false, nil
}

// admits reports whether a credential is one that pulled the image: the same secret, the same content, or the same account.
func (a access) admits(c credentials.Credential) bool {
	return slices.ContainsFunc(a.Holders, func(h holder) bool {
		return h.Source == c.Source && c.Source.Kind != "" || h.Kind == credentials.KindSecret && c.Source.Kind == credentials.KindSecret && h.Hash == c.Hash()
	})
}

// forget drops the records of images that are gone.
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

// repositoryOf is the name of an image without tag and digest, as the pod has it.
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
