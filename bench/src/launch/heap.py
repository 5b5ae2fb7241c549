# A Python program at its start: it imports a good part of the library, and fills its heap.
import sys
import argparse, ast, asyncio, base64, bisect, calendar, cmd, collections, concurrent.futures
import configparser, contextlib, copy, csv, ctypes, dataclasses, datetime, decimal, difflib
import email.message, enum, fractions, ftplib, functools, getpass, glob, gzip, hashlib, heapq
import html.parser, http.client, http.server, imaplib, importlib, inspect, io, ipaddress
import itertools, json, locale, logging.config, mailbox, mimetypes, multiprocessing, optparse
import pathlib, pdb, pickle, platform, plistlib, pprint, profile, pydoc, queue, random, re
import sched, selectors, shelve, shlex, shutil, smtplib, socketserver, sqlite3, ssl
import statistics, string, subprocess, tarfile, tempfile, textwrap, threading
import timeit, tokenize, traceback, types, typing, unittest.mock, urllib.request, uuid
import wave, weakref, xml.dom.minidom, xml.etree.ElementTree, xmlrpc.client, zipfile, zlib

# An entry is 340 bytes or so, with its place in the table.
entries = int(sys.argv[1]) * (1 << 20) // 340
heap = {}
state = 12345
for n in range(entries):
    state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    heap[n] = ("%08x" % state) * 24
# Once more through some of it, in no order: a program uses what it made.
check = 0
for n in range(entries // 64):
    state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    check = zlib.crc32(heap[state % entries].encode(), check)
print("ready", check, flush=True)
sys.stdin.readline()
