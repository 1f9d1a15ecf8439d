package pki

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
)

// ReadSigner reads a file with a private key: ECDSA or RSA, in any of the usual encodings.
func ReadSigner(path string) (crypto.Signer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(data)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	return key, nil
}

// ReadPublicKeys reads the public keys of a PEM file. For private keys and certificates it returns their public key.
func ReadPublicKeys(path string) ([]crypto.PublicKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	keys, err := parsePublicKeys(data)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	return keys, nil
}

func parsePublicKeys(data []byte) ([]crypto.PublicKey, error) {
	var keys []crypto.PublicKey
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		switch block.Type {
		case "PUBLIC KEY":
			key, err := x509.ParsePKIXPublicKey(block.Bytes)
			if err != nil {
				return nil, err
			}
			keys = append(keys, key)
		case "RSA PUBLIC KEY":
			key, err := x509.ParsePKCS1PublicKey(block.Bytes)
			if err != nil {
				return nil, err
			}
			keys = append(keys, key)
		case "CERTIFICATE":
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, err
			}
			keys = append(keys, cert.PublicKey)
		case "PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY":
			key, err := parsePrivateKey(block.Bytes)
			if err != nil {
				return nil, err
			}
			keys = append(keys, key.Public())
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("data does not contain any valid RSA or ECDSA public keys")
	}
	return keys, nil
}
